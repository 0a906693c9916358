"""A client of Spark Connect that tries each feature of the package. It prints a line of JSON: what works, and else the
last line of the error.

Arguments: the brokers, and a directory. ``SPARK_REMOTE`` names the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_kafkalite import Producer
from spark_kafkalite.cli.doctor.executors import start_session as start_doctor
from spark_kafkalite.functions import latest, split_registry_frame, write_update
from spark_kafkalite.jobs.program.session import start_session as start_job
from spark_kafkalite.spark import fetch_token, install_listener, read_published, register

TRIES: dict[str, Callable[[Client], object]] = {}


def tried(name: str) -> Callable[[Callable[[Client], object]], None]:
    """Register what tries a feature; the name is that of the page's table. It returns whether the result is right."""

    def note(function: Callable[[Client], object]) -> None:
        TRIES[name] = function

    return note


class Client:
    """The session, the options of the brokers, and topics."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        self.brokers: dict[str, Any] = {"kafka.bootstrap.servers": bootstrap}
        self.directory = directory
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for value in (b"one", b"two"):
                producer.send("lines", value, key=b"k").result(30)

    def values(self, topic: str) -> list[str]:
        frame = self.spark.read.format("kafkalite").options(**self.brokers, subscribe=topic).load()
        return sorted(row.value for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.format("kafkalite").options(**self.brokers, startingOffsets="earliest")
        return reader.option("subscribe", "lines").load()

    def run(self, writer: Any, name: str) -> None:
        query = writer.option("checkpointLocation", str(self.directory / name)).trigger(availableNow=True).start()
        query.awaitTermination()


@tried('`spark.read.format("kafkalite")`')
def _(client: Client) -> object:
    return client.values("lines") == ["one", "two"]


@tried('`spark.readStream.format("kafkalite")`')
def _(client: Client) -> object:
    client.run(client.stream().writeStream.format("parquet").option("path", str(client.directory / "files")), "read")
    return client.spark.read.parquet(str(client.directory / "files")).count() == 2


@tried('`.write.format("kafkalite")`')
def _(client: Client) -> object:
    rows = client.spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("kafkalite").options(**client.brokers, topic="batch").mode("append").save()
    return client.values("batch") == ["0", "1", "2"]


@tried('`.writeStream.format("kafkalite")`')
def _(client: Client) -> object:
    sink = client.stream().select("value").writeStream.format("kafkalite").options(**client.brokers, topic="streamed")
    client.run(sink, "write")
    return client.values("streamed") == ["one", "two"]


@tried("`functions.write_update`")
def _(client: Client) -> object:
    counts = client.stream().groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
    client.run(write_update(counts, client.brokers, topic="counts"), "update")
    return client.values("counts") == ["2"]


@tried("`functions.latest` inside `foreachBatch`")
def _(client: Client) -> object:
    brokers, path = client.brokers, str(client.directory / "joined")

    def join(batch: DataFrame, _: int) -> None:
        batch.join(latest(batch.sparkSession, brokers, subscribe="lines"), "offset").write.parquet(path)

    client.run(client.stream().select("offset").writeStream.foreachBatch(join), "latest")
    return client.spark.read.parquet(path).count() == 2


@tried("`functions.split_registry_frame`")
def _(client: Client) -> object:
    frame = client.spark.sql("SELECT X'0000000007FF' AS value")
    [row] = frame.select(split_registry_frame("value").alias("framed")).collect()
    return bool(row.framed.schema_id == 7)


@tried("`register`")
def _(client: Client) -> object:
    register(client.spark)
    return client.values("lines") == ["one", "two"]


@tried("`read_published`")
def _(client: Client) -> object:
    return read_published(client.spark, str(client.directory / "files"))


@tried("`fetch_token`")
def _(client: Client) -> object:
    return fetch_token(client.spark, "cluster")


@tried("`install_listener`")
def _(client: Client) -> object:
    return install_listener(client.spark)


@tried("jobs")
def _(client: Client) -> object:
    return start_job("a job")


@tried("`kafkalite doctor --spark`")
def _(client: Client) -> object:
    return start_doctor(None, {})


def main(bootstrap: str, directory: str) -> None:
    client = Client(bootstrap, Path(directory))
    found: dict[str, object] = {}
    for name, attempt in TRIES.items():
        try:
            found[name] = "works" if attempt(client) else "gives a wrong result"
        except Exception as error:
            found[name] = " ".join(str(getattr(error, "message", error)).split())[-400:]
    frame = client.spark.read.format("kafkalite").options(**client.brokers, subscribe="batch").load()
    before = frame.count()
    client.spark.sql("SELECT 'x' AS value").write.format("kafkalite").options(**client.brokers, topic="batch").mode(
        "append"
    ).save()
    found["newer"] = frame.count() - before
    print(json.dumps(found))
    client.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
