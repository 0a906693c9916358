"""A client of Spark Connect that does things wrong, and prints the errors' texts as one line of JSON.

Arguments: the brokers, a topic, the address of no broker, a checkpoint. SPARK_REMOTE says where the server is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pyspark.sql import SparkSession


def main(bootstrap: str, topic: str, nobody: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    # Else the server's stack stands behind what is told.
    spark.conf.set("spark.sql.connect.serverStacktrace.enabled", "false")
    brokers = {"kafka.bootstrap.servers": bootstrap}

    def read(**options: str) -> None:
        spark.read.format("kafkalite").options(**brokers | options).load().count()

    def stream(**options: str) -> None:
        frame = spark.readStream.format("kafkalite").options(**brokers | options).load()
        frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start().awaitTermination()

    wrong: dict[str, Callable[[], None]] = {
        "no broker": lambda: read(
            **{"kafka.bootstrap.servers": nobody, "kafka.default.api.timeout.ms": "1000", "subscribe": topic}
        ),
        "unknown option": lambda: read(subscribe=topic, startingOffset="earliest"),
        "stream": lambda: stream(subscribe=topic, endingOffsets="latest"),
    }
    told = {}
    for name, do in wrong.items():
        try:
            do()
        except Exception as error:
            told[name] = str(error)
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
