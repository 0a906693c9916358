"""A Spark session and the kinds of work that benches measure in it, on any PySpark that has Python data sources."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_kafkalite import Admin

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4
# A user's own load. Its arguments: format, bootstrap address, topic, destination, and perhaps startingOffsets.
QUERY_BY_HAND = """
import sys
from pyspark.sql import SparkSession
source, bootstrap, topic, destination, *starting = sys.argv[1:]
spark = SparkSession.builder.appName("by hand").getOrCreate()
reader = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
for offsets in starting:
    reader = reader.option("startingOffsets", offsets)
(
    reader.option("includeHeaders", "true")
    .load()
    .selectExpr("*", "date_format(timestamp, 'yyyy-MM-dd') AS day")
    .write.partitionBy("topic", "day")
    .parquet(destination)
)
spark.stop()
"""
_NAMES = itertools.count()


def program_seconds(arguments: Sequence[str], **variables: str) -> float:
    """Run this interpreter with these arguments and variables to its end, and return how long that took."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **variables,
    }
    started = time.monotonic()
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started


def local_session(settings: Mapping[str, str]) -> SparkSession:
    """Return a session of two cores whose workers run this interpreter and import this package's sources."""
    # Spark starts python3 from the PATH otherwise.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, source: str, options: Mapping[str, str], count: int) -> float:
    """Read ``count`` rows in a batch; return the seconds."""
    started = time.monotonic()
    frame = spark.read.format(source).options(**options).load()
    found = frame.selectExpr("count(*)", "sum(length(value))").first()
    assert found is not None and found[0] == count, f"{found} instead of {count} rows were read"
    return time.monotonic() - started


def stream(spark: SparkSession, source: str, options: Mapping[str, str], count: int) -> float:
    """Read ``count`` rows in a new AvailableNow stream; return the seconds."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as checkpoint:
        started = time.monotonic()
        query = (
            spark.readStream.format(source)
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.monotonic() - started
        found = sum(progress.numInputRows for progress in query.recentProgress)
        assert found == count, f"{source} streamed {found} of {count} rows"
    return seconds


def write(sink: str, bootstrap: str, frame: DataFrame, codec: str = "none") -> float:
    """Write rows to a new topic, which goes afterwards; return the seconds."""
    # Of a process: several may share a broker.
    topic = f"write-{os.getpid()}-{next(_NAMES)}"
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(topic, PARTITIONS)
        started = time.monotonic()
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
        frame.write.format(sink).options(**options).mode("append").save()
        seconds = time.monotonic() - started
        admin.delete_topics([topic])
    return seconds
