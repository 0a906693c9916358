"""A Spark application that streams the topic of the day into Parquet files, until a file tells it to end.

Run with one JSON object: ``bootstrap``, ``topic``, ``out``, ``checkpoint``, ``every`` (the trigger's interval), ``end``
(the file) and ``conf`` of Spark. Once the file is there it reads what is left, and ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(argument: str) -> None:
    config = json.loads(argument)
    builder = SparkSession.builder.appName("day stream")
    for name, value in config["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")

    reader = spark.readStream.format("kafkalite").option("kafka.bootstrap.servers", config["bootstrap"])
    rows = reader.option("subscribe", config["topic"]).option("startingOffsets", "earliest").load()
    writer = rows.select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("path", config["out"]).option("checkpointLocation", config["checkpoint"])
    query = writer.trigger(processingTime=config["every"]).start()
    while not Path(config["end"]).exists():
        # Raises what has ended the query.
        if query.awaitTermination(1):
            raise RuntimeError("the query ended by itself")
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
