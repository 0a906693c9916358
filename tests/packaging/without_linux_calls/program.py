"""Client, broker, registry, source and sink in a process without the calls that macOS lacks, and so in its children.

    PYTHONPATH=(this directory):(the project) python program.py PART

Each part prints one line when it is through. It works in the current directory, and leaves no file of a key there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import spark_kafkalite
from spark_kafkalite import Admin, Consumer, Producer, platform_calls
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess

VALUES = [b"value %d" % number * 100 for number in range(2_000)]


def check_that_names_are_hidden() -> None:
    names = ("memfd_create", "eventfd", "posix_fallocate", "fdatasync", "posix_fadvise", "sendfile", "preadv2")
    assert [name for name in names if hasattr(os, name)] == [], "the names are there"
    assert platform_calls.NOWAIT == platform_calls.MSG_MORE == 0
    try:
        open("/proc/self/stat").close()
    except FileNotFoundError:
        return
    raise AssertionError("/proc is there")


def produce(bootstrap: str, topic: str) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        # Each record is flushed, and segments are made while they are written.
        admin.create_topic(topic, 1, configs={"flush.messages": "1", "segment.bytes": "100000", "preallocate": "true"})
    with Producer({"bootstrap.servers": bootstrap, "acks": "all"}) as producer:
        for value in VALUES:
            producer.send(topic, value)


def consume(bootstrap: str, topic: str) -> None:
    consumed: list[bytes] = []
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        while len(consumed) < len(VALUES):
            consumed += [bytes(record.value or b"") for record in consumer.poll(1000)]
        consumer.commit()
    assert consumed == VALUES


def broker_and_client() -> str:
    with BrokerProcess(Path("broker")) as broker:
        produce(broker.bootstrap, "t")
        consume(broker.bootstrap, "t")
        broker.kill()
        # What it flushed is read from the disk, and the logs are checked.
        broker.start()
        consume_again = Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"})
        with consume_again as consumer:
            consumer.assign([spark_kafkalite.TopicPartition("t", 0)])
            count = 0
            while count < len(VALUES):
                count += len(consumer.poll(1000))
        assert broker.stop() == 0
    return f"{len(VALUES)} records"


def registry() -> str:
    with RegistryProcess(Path("registry")) as server:
        overrides = {"broker.id": 1, "zookeeper.connect": server.connect, "offsets.topic.replication.factor": 1}
        with BrokerProcess(Path("clustered"), overrides=overrides) as broker:
            produce(broker.bootstrap, "t")
            consume(broker.bootstrap, "t")
    return "a session"


def client_key() -> str:
    from tests.unit.security.test_key_stores import connects, made

    os.environ["TMPDIR"] = str(Path("keys").absolute())
    Path("keys").mkdir()
    connects(ssl_keystore_key=made().key, ssl_keystore_certificate_chain=made().chain)
    assert os.listdir("keys") == []
    return "a handshake"


def spark() -> str:
    from pyspark.sql import DataFrame, SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    with BrokerProcess(Path("spark"), registry_port=0) as broker:
        produce(broker.bootstrap, "t")
        server = {"kafka.bootstrap.servers": broker.bootstrap}

        def read(topic: str) -> DataFrame:
            return session.read.format("kafkalite").options(**server).option("subscribe", topic).load()

        committing = {"groupId": "g", "commitOffsets": "both", "zookeeper.connect": broker.registry_connect}
        stream = session.readStream.format("kafkalite").options(**server, **committing)
        query = (
            stream.option("subscribe", "t").option("startingOffsets", "earliest").load().select("value")
            .writeStream.format("kafkalite").options(**server)
            .option("topic", "copy").option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        rows = read("copy").orderBy("offset").collect()
        assert [bytes(row.value) for row in rows] == VALUES
        writer = read("t").select("value").write
        writer.format("kafkalite").options(**server).option("topic", "batch").mode("append").save()
        assert read("batch").count() == len(VALUES)
        session.stop()
    return f"{len(rows)} rows"


PARTS = {"broker": broker_and_client, "registry": registry, "client_key": client_key, "spark": spark}

if __name__ == "__main__":
    check_that_names_are_hidden()
    print(f"{sys.argv[1]}: {PARTS[sys.argv[1]]()}")
