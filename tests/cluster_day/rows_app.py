"""A Spark application that reads the stream's files and the load's as users would, and writes down their rows.

Run with one JSON object: ``stream`` and ``load`` (directories), ``rows`` (where stream.parquet and load.parquet go) and
``conf`` of Spark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet
from pyspark.sql import SparkSession

from spark_kafkalite.spark import read_published

COLUMNS = ("partition", "offset", "value")


def main(argument: str) -> None:
    config = json.loads(argument)
    builder = SparkSession.builder.appName("day rows")
    for name, value in config["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frames = {
        "stream": spark.read.parquet(config["stream"]),
        "load": read_published(spark, config["load"], check_counts=True),
    }
    for name, frame in frames.items():
        pyarrow.parquet.write_table(frame.select(*COLUMNS).toArrow(), Path(config["rows"]) / f"{name}.parquet")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
