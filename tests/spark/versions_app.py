"""An application on another PySpark: it copies what is there from one topic to another, two offsets a batch.

python -m tests.spark.versions_app BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from spark_kafkalite.spark.pyspark_versions import AVAILABLE_NOW_OPTIONS, start_available_now

from .class_archive import archive_options, connector_class_path, session_settings


def copy(spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    """Copy what is there, and go on where the checkpoint stands."""
    server = {"kafka.bootstrap.servers": bootstrap}
    read = {**server, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
    stream = spark.readStream.format("kafkalite").options(**read, **AVAILABLE_NOW_OPTIONS).load()
    writer = stream.select("value").writeStream.format("kafkalite").options(**server, topic=target)
    start_available_now(writer.option("checkpointLocation", checkpoint)).awaitTermination()


def main(arguments: list[str]) -> None:
    bootstrap, source, target, checkpoint = arguments
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in session_settings(*archive_options(connector_class_path())).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    copy(spark, bootstrap, source, target, checkpoint)
    print(spark.version)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
