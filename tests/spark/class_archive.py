"""An archive of Spark's classes, which the JVMs of tests map into memory instead of loading and checking each class.

Loading classes is 40 % of what the start of a Spark computes. ``python -m tests.spark.class_archive`` makes the archive
of the PySpark that it runs with, once, and keeps it in the virtual environment. Tests use it if it exists. Java checks
that it fits the class path and itself, and does without it otherwise.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_command
from tests.lab import jars
from tests.lab.class_archives import QUIET
from tests.seeds import SOAK

# Such small queries are over before the second compiler's work pays. With one compiler Java keeps 48 MiB for compiled
# code: the classes that Spark generates for its queries fill them, and a thread is busy with making room. Spark starts
# programs such as chmod. Java starts them by another program of its own, except with VFORK.
SESSION_OPTIONS: Final = (
    *SHORT_LIVED_OPTIONS,
    "-XX:ReservedCodeCacheSize=256m",
    "-Djdk.lang.Process.launchMechanism=VFORK",
)


def session_settings(*java_options: str) -> dict[str, str]:
    """Return the settings of a small session whose JVM lives on the loopback address."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": " ".join([*SESSION_OPTIONS, *java_options]),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    if not SOAK:
        # Spark's own choice starts four processes for each file of a checkpoint, to ask whether it is a link.
        package = "streaming" if pyspark.__version__.startswith("4.0.") else "streaming.checkpointing"
        settings["spark.sql.streaming.checkpointFileManagerClass"] = (
            f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        )
    if connector := connector_class_path():
        settings["spark.driver.extraClassPath"] = connector
    return settings


def connector_class_path() -> str | None:
    """Return the class path of Spark's own connectors, or None where their jars are missing or of another PySpark."""
    needed = (jars.SPARK_KAFKA_CONNECTOR, jars.SPARK_AVRO)
    if pyspark.__version__ != jars.SPARK_CONNECTOR_VERSION or any(jars.available(each) for each in needed):
        return None
    return jars.class_path(*map(jars.fetch, needed))


def archive_options(class_path: str | None = None) -> tuple[str, ...]:
    """Return the Java options that use the archive of this PySpark, with a class path before its own, if it exists."""
    path = _path(class_path)
    return (f"-XX:SharedArchiveFile={path}", *QUIET) if path.exists() else ()


def java_options(*more: str) -> str:
    """Return the Java options of a driver or an executor that is short-lived, as ``extraJavaOptions`` takes them."""
    return " ".join([*SHORT_LIVED_OPTIONS, *archive_options(), *more])


def java_environment() -> dict[str, str]:
    """Return the environment variables of a program that starts such JVMs and takes no options for them. The soak
    starts them as users do."""
    return {} if SOAK else {"JAVA_TOOL_OPTIONS": java_options()}


def _path(class_path: str | None) -> Path:
    """Return where the archive lies: what has to fit is in its name."""
    java = Path(java_command() or "java").resolve()
    described = "\n".join([str(java), str(Path(pyspark.__file__).parent), pyspark.__version__, class_path or ""])
    digest = hashlib.blake2b(described.encode(), digest_size=6).hexdigest()
    return Path(sys.prefix) / "class-archives" / f"pyspark-{pyspark.__version__}-{digest}.jsa"


def make(class_path: str | None) -> None:
    """Make an archive of the classes that a few small queries load, unless it exists."""
    # Only for this: a process of tests has its session already.
    from pyspark.sql import SparkSession

    path = _path(class_path)
    if path.exists():
        return
    print(f"Making an archive of the classes of Spark {pyspark.__version__} for tests; that takes a minute", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / "made.jsa"
        builder = SparkSession.builder.master("local[2]")
        settings = session_settings(f"-XX:ArchiveClassesAtExit={made}", *QUIET)
        settings.pop("spark.driver.extraClassPath", None)
        if class_path is not None:
            settings["spark.driver.extraClassPath"] = class_path
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.sparkContext.setLogLevel("OFF")
        rows = spark.range(100).selectExpr("cast(id AS string) AS value", "id % 7 AS key").groupBy("key").count()
        rows.orderBy("key").write.parquet(f"{scratch}/rows")
        stream = spark.readStream.schema("key long, count long").parquet(f"{scratch}/rows").writeStream
        query = stream.foreachBatch(lambda batch, _: batch.collect() and None)
        query.option("checkpointLocation", f"{scratch}/checkpoint").trigger(
            availableNow=True
        ).start().awaitTermination()
        spark.stop()
        # The JVM ends with its standard input, and writes the archive then.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        made.rename(path)


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if java_command() is not None:
        make(connector_class_path())
