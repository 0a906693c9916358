"""A Spark application that writes, reads and streams at secured listeners. Run by spark-submit with one JSON file.

The file holds ``ways``: by name, the options of the source and the sink, a topic that is to be written and read, and
how many ``tasks`` a batch is read in. Prints what was read each way, as one line of JSON: where a way is ``refused``,
what was said.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def main(config_path: str) -> None:
    ways = json.loads(Path(config_path).read_text())["ways"]
    spark = SparkSession.builder.appName("secured").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    results = {name: (refusal if way.pop("refused", False) else run)(spark, **way) for name, way in ways.items()}
    print(json.dumps(results))
    spark.stop()


def run(spark: SparkSession, options: dict[str, str], topic: str, tasks: int, checkpoint: str) -> dict[str, Any]:
    """Write a record per task, and read them all; the numbers are to be the same each time."""
    frame = spark.range(tasks).selectExpr("CAST(id AS STRING) AS value").repartition(2)
    frame.write.format("kafkalite").options(**options, topic=topic).mode("append").save()

    read = spark.read.format("kafkalite").options(**options, subscribe=topic, maxRecordsPerPartition=1).load()
    batch = {int(row.value) for row in read.collect()}

    streamed: list[int] = []

    def take(rows: DataFrame, _: int) -> None:
        streamed.extend(int(row.value) for row in rows.collect())

    stream = spark.readStream.format("kafkalite").options(**options, subscribe=topic, startingOffsets="earliest").load()
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    return {
        "batch": len(batch),
        "tasks": read.rdd.getNumPartitions(),
        "stream": len(streamed),
        "distinct": len(set(streamed)),
    }


def refusal(spark: SparkSession, **way: Any) -> str:
    """Return the error of a way that fails."""
    try:
        run(spark, **way)
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(sys.argv[1])
