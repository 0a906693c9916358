"""An application that a virtual environment's Python runs by its path, as cron does, without PYSPARK_PYTHON.

Arguments: the brokers, a topic of three records, another topic, a checkpoint. Prints a line of JSON: the error before
the listener is installed, and what is read and streamed after that.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from spark_kafkalite.spark import install_listener


def main(bootstrap: str, topic: str, copy: str, checkpoint: str) -> None:
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    brokers = {"kafka.bootstrap.servers": bootstrap}

    def values(name: str) -> list[str]:
        frame = spark.read.format("kafkalite").options(**brokers, subscribe=name).load()
        return sorted(row.value for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())

    try:
        values(topic)
        before = "no error"
    except Exception as error:
        before = str(error)
    install_listener(spark)
    read = values(topic)
    stream = spark.readStream.format("kafkalite").options(**brokers, subscribe=topic, startingOffsets="earliest").load()
    writer = stream.select("value").writeStream.format("kafkalite").options(**brokers, topic=copy)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({"before": before, "read": read, "streamed": values(copy)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
