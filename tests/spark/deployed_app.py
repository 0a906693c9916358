"""A Spark application as a recipe of docs/spark.md runs one: it writes a topic, reads it, and streams it into another.

Run by spark-submit, or as a client of Spark Connect with SPARK_REMOTE. Arguments: the brokers, the two topics, the
checkpoint. Prints one line of JSON: how many values came each way, and which Python and which of its packages the tasks
used. Imports nothing of the package itself: a client of Connect need not have it.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

RECORDS = 20


def main(bootstrap: str, topic: str, copy: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("deployed").getOrCreate()
    brokers = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.range(RECORDS).selectExpr("CAST(id AS STRING) AS value").repartition(2)
    rows.write.format("kafkalite").options(**brokers, topic=topic).mode("append").save()
    found = {"read": values(read(spark, brokers, topic))}

    stream = spark.readStream.format("kafkalite").options(**brokers, subscribe=topic, startingOffsets="earliest").load()
    writer = stream.select("value").writeStream.format("kafkalite").options(**brokers, topic=copy)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    found["streamed"] = values(read(spark, brokers, copy))

    # Not mapInArrow, which wants pandas.
    tasks = spark.range(4).repartition(4).select(udf(where, "string")("id").alias("found")).collect()
    print(json.dumps(found | {"tasks": sorted({tuple(json.loads(row.found)) for row in tasks})}))
    spark.stop()


def read(spark: SparkSession, brokers: dict[str, str], topic: str) -> DataFrame:
    return spark.read.format("kafkalite").options(**brokers, subscribe=topic, maxRecordsPerPartition=5).load()


def values(frame: DataFrame) -> int:
    """Return how many different numbers there are, after a look that none is there twice."""
    rows = [int(row.value) for row in frame.collect()]
    assert len(rows) == len(set(rows)), rows
    return len(rows)


def where(_: int) -> str:
    """Return a task's Python, and where it has the package from, as JSON."""
    import json
    import sys
    from importlib.util import find_spec

    found = find_spec("spark_kafkalite")
    return json.dumps([sys.executable, found and found.origin])


if __name__ == "__main__":
    main(*sys.argv[1:])
