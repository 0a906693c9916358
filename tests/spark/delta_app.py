"""Reads the table of a load with Spark and Delta Lake, in a process of its own: ``delta_app.py TABLE WORK``.

Each line of its input is a command: ``read``, ``stream``, ``optimize`` or ``restore``. It answers each by a line with
one JSON object. One process does it all, because to start Spark with Delta Lake takes ten CPU seconds.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.lab import jars
from tests.spark.class_archive import archive_options, connector_class_path, session_settings


def session() -> SparkSession:
    # Behind the class path, whose classes come from the archive.
    settings = session_settings(*archive_options(connector_class_path())) | {
        "spark.jars": ",".join(jars.class_path(jars.fetch(jars.DELTA_SPARK)).split(os.pathsep)),
        # The state of a table is computed in 50 tasks otherwise.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def streamed(spark: SparkSession, table: str, work: str) -> list[int]:
    """Return the offsets that a stream reads from version 1 on."""
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(row.offset for row in batch.collect())

    stream = spark.readStream.format("delta").option("startingVersion", 1).load(table)
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", f"{work}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    return sorted(found)


def read(spark: SparkSession, table: str) -> dict[str, Any]:
    """Return what batch readers see."""
    frame = spark.read.format("delta").load(table)
    day = frame.where("day = '2013-01-02'")
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").orderBy("version").collect()
    return {
        "offsets": sorted(row.offset for row in frame.select("offset").collect()),
        "names": sorted(row.name for row in frame.where("value.name is not null").select("value.name").collect()),
        "day": sorted(row.offset for row in day.collect()),
        "files_of_day": len(frame.where("day = '2013-01-02'").inputFiles()),
        "files_of_offset": len(frame.where("offset = 7").inputFiles()),
        "metadata": [row.userMetadata for row in history],
        "operations": [row.operation for row in history],
    }


def main() -> None:
    table, work = sys.argv[1:]
    spark = session()
    for number, line in enumerate(sys.stdin):
        found: dict[str, Any] = {}
        match line.strip():
            case "read":
                found = read(spark, table)
            case "stream":
                found["offsets"] = streamed(spark, table, f"{work}/{number}")
            case "optimize":
                spark.sql(f"OPTIMIZE delta.`{table}`")
            case "restore":
                spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 2")
        print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
