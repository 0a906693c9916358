"""A streaming query that is watched: ``python -m tests.boards.query BOOTSTRAP DIRECTORY``, until its input ends.

It reads the topic ``orders``, writes ``revenue``, and prints the address of its figures when it has some.
"""

from __future__ import annotations

import sys
from typing import Final

from pyspark.sql import SparkSession

from spark_kafkalite.spark import install_listener

_BATCHES: Final = 2


def main(bootstrap: str, directory: str) -> None:
    """Run the query. Ends with exit status 1 and Spark's error if the query fails."""
    builder = SparkSession.builder.master("local[1]").appName("boards")
    builder = builder.config("spark.ui.enabled", "false").config("spark.python.unix.domain.socket.enabled", "true")
    # By default a Python worker has 15 seconds to connect, which is too short on a busy host.
    spark = builder.config("spark.python.authenticate.socketTimeout", "10min").getOrCreate()
    host, port = install_listener(spark).serve()
    orders = spark.readStream.format("kafkalite").option("kafka.bootstrap.servers", bootstrap)
    # It begins behind, and catches up in some batches.
    orders = orders.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "10000")
    rows = orders.option("subscribe", "orders").load().select("key", "value")
    revenue = rows.writeStream.format("kafkalite").option("kafka.bootstrap.servers", bootstrap)
    revenue = revenue.option("topic", "revenue").option("checkpointLocation", f"{directory}/checkpoint")
    query = revenue.queryName("revenue").trigger(processingTime="5 seconds").start()
    while query.isActive and len(query.recentProgress) < _BATCHES:
        query.awaitTermination(1)
    if query.isActive:
        print(f"{host}:{port}", flush=True)
        sys.stdin.read()
    query.stop()
    if (error := query.exception()) is not None:
        raise SystemExit(str(error))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
