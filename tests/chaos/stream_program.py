"""A Spark stream that says what it is given, for ``clients/spark_stream.py``.

    python -m tests.chaos.stream_program BOOTSTRAP TOPIC GROUP CHECKPOINT FAIL_ON_DATA_LOSS

prints a line for each batch: JSON, a list of partition, offset and the value's name. It ends when its input does, or by
the query's error.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from pyspark.sql import DataFrame, SparkSession

from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from tests.chaos.values import name_of

_TRIGGER = "1 second"
# Spark looks at the traceback of a batch that a stop interrupts with a regular expression that recurses with its length
# (StreamExecution.isInterruptionException); on a stack of the usual size that is the end of the query's thread.
_STACK = "-Xss16m"


def main(bootstrap: str, topic: str, group: str, checkpoint: str, fail_on_data_loss: str) -> None:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[1]").appName("chaos")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": " ".join((*SHORT_LIVED_OPTIONS, _STACK)),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": f"{checkpoint}-warehouse",
        "spark.local.dir": f"{checkpoint}-local",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def say(batch: DataFrame, _: int) -> None:
        rows = sorted((row.partition, row.offset, name_of(bytes(row.value))) for row in batch.collect())
        print(json.dumps(rows), flush=True)

    query = (
        spark.readStream.format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", group)
        .option("failOnDataLoss", fail_on_data_loss)
        .load()
        .select("partition", "offset", "value")
        .writeStream.foreachBatch(say)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=_TRIGGER)
        .start()
    )

    def end_with_input() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=end_with_input, daemon=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
