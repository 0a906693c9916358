"""A Spark application that loads a topic into files and is killed on the way, or has an executor of its killed.

Run with one JSON file: ``conf`` of Spark, the ``topic`` at ``bootstrap``, the ``out`` and ``checkpoint`` directories,
and one of

- ``step`` and ``after_s``: kill this whole process group so long after that step of the second batch of this run can be
  seen in the file system;
- ``lose_executor``: a file; the first task that does not find it makes it, and kills the executor that runs it.

An application that lives to the end prints what it reads back from the files, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

# In the order in which a batch leaves traces: its plan, a task's file, the sink's list of files, its end.
STEPS = ("offsets", "data", "manifest", "commits")


def main(config_path: str) -> None:
    config = json.loads(Path(config_path).read_text())
    builder = SparkSession.builder.appName("killed")
    for name, value in config["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if "step" in config:
        kill_after(step_seen(config), config["after_s"])
    rows = spark.readStream.format("kafkalite").options(
        **{"kafka.bootstrap.servers": config["bootstrap"], "subscribe": config["topic"]},
        startingOffsets="earliest",
        maxOffsetsPerTrigger=config["batch"],
    )
    frame = rows.load().selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
    if "lose_executor" in config:
        passed_on = udf(losing_executor(config["lose_executor"]), "string")
        frame = frame.withColumn("value", passed_on("value"))
    query = (
        frame.writeStream.format("json")
        .option("path", config["out"])
        .option("checkpointLocation", config["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(json.dumps(read_back(spark.read.json(config["out"]))))
    spark.stop()


def read_back(frame: DataFrame) -> list[list[Any]]:
    return sorted([row.partition, row.offset, row.value] for row in frame.collect())


def step_seen(config: dict[str, Any]) -> Callable[[], bool]:
    """Return what says whether the second batch from here on has come to a step."""
    out, checkpoint = Path(config["out"]), Path(config["checkpoint"])
    # The batch that was planned last may be repeated; the one after it is new.
    batch = sum(entry.name.isdigit() for entry in (checkpoint / "offsets").glob("*")) + 1
    if config["step"] == "data":
        planned = checkpoint / "offsets" / str(batch)
        files = out.glob
        before: list[int] = []

        def has_new_file() -> bool:
            if not planned.exists():
                return False
            count = sum(1 for _ in files("part-*"))
            before.append(count)
            return count > before[0]

        return has_new_file
    path = {
        "offsets": checkpoint / "offsets" / str(batch),
        "manifest": out / "_spark_metadata" / str(batch),
        "commits": checkpoint / "commits" / str(batch),
    }[config["step"]]
    return path.exists


def kill_after(seen: Callable[[], bool], after_s: float) -> None:
    """Kill this process and the JVM that it has started, which are a process group."""

    def watch() -> None:
        while not seen():
            time.sleep(0.001)
        time.sleep(after_s)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def losing_executor(marker: str) -> Callable[[str], str]:
    """Return what passes values on and, once, at one in the middle of a batch, kills the executor that runs it."""

    def pass_on(value: str) -> str:
        if int(value) % 10 == 7:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return value
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)
        return value

    return pass_on


if __name__ == "__main__":
    main(sys.argv[1])
