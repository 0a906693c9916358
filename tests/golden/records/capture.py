"""Makes the files of this directory: what real clients send, as Apache Kafka keeps it in its segment files.

    python tests/golden/records/capture.py

Needs Java and Apache Kafka's jars (see ``tests.lab.apache_kafka``). Run it again only to take in a new
client or case; the files are checked in, so that the unit tests need neither.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka

from tests.lab.apache_kafka import ApacheKafka
from tests.patience import PATIENCE_S, wait_until

HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# kafka-python takes the other codecs from packages that the development environment has no other use for.
KAFKA_PYTHON_CODECS = ("none", "gzip")
BASE_MS = 1_700_000_000_000
# Three dialects of snappy and lz4 differ from the second block on, so one value is larger than any block.
LARGE = b"0123456789abcdef" * 6000
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]] = [
    (b"key-0", b"value-0", [], BASE_MS),
    (None, b"", [("trace", b"\x01\x02"), ("trace", b"")], BASE_MS + 5),
    (b"", None, [("caf\u00e9", b"x")], BASE_MS + 3),
    ("schl\u00fcssel".encode(), LARGE, [], BASE_MS + 70_000),
    (b"key-0", b"value-4", [("last", b"header")], BASE_MS + 70_001),
]


def send_with_confluent(bootstrap: str, topic: str, codec: str, **more: Any) -> None:
    producer = confluent_kafka.Producer({
        "bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 300, "message.max.bytes": 2_000_000,
        **more,
    })  # fmt: skip
    for key, value, headers, timestamp in RECORDS:
        producer.produce(topic, value, key, partition=0, timestamp=timestamp, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def send_with_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=300,
        batch_size=200_000,
    )
    for key, value, headers, timestamp in RECORDS:
        producer.send(topic, value, key, headers, partition=0, timestamp_ms=timestamp)
    producer.flush(PATIENCE_S)
    producer.close()


async def send_with_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=300,
        max_batch_size=200_000,
    )
    await producer.start()
    futures = [
        await producer.send(topic, value, key, 0, timestamp, headers) for key, value, headers, timestamp in RECORDS
    ]
    await asyncio.gather(*futures)
    await producer.stop()


def send_with_java(cluster: ApacheKafka, topic: str, codec: str) -> None:
    # The console producer stamps records with the time of sending, and knows no binary values.
    lines = [
        "trace:1,trace:2\tkey-0\tvalue-0",
        "NULL\tNULL\tvalue-1",
        "NULL\tkey-2\tNULL",
        "NULL\tkey-3\t" + LARGE.decode(),
        "last:header\tkey-0\tvalue-4",
    ]
    cluster.tool(
        "org.apache.kafka.tools.ConsoleProducer", "--topic", topic, "--compression-codec", codec,
        "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        "--reader-property", "null.marker=NULL",
        "--command-property", "linger.ms=500", "--command-property", "batch.size=200000",
        input="\n".join(lines) + "\n",
    )  # fmt: skip


def send_transactions(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "golden"})
    producer.init_transactions(30)
    for commit in (True, False):
        producer.begin_transaction()
        producer.produce(topic, b"committed" if commit else b"aborted", partition=0, timestamp=BASE_MS)
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)


def capture_cleaned(directory: Path) -> None:
    """Let Kafka's cleaner work on a log: batches with delete horizons, with gaps, and one without records."""
    name, end_offset = "cleaned", 24
    overrides = {"log.cleaner.backoff.ms": "200"}
    with ApacheKafka(directory, overrides=overrides) as cluster:
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "internal.segment.bytes": "4000"}
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([confluent_kafka.admin.NewTopic(name, 1, 1, config=config)])[name].result(PATIENCE_S)
        batches: list[tuple[str, list[tuple[str, bytes | None]]]] = [
            (codec, [("shared", b"old"), (f"gone {codec}", None), (f"kept {codec}", b"x" * 50), ("again", b"old")])
            for codec in CODECS
        ]
        batches += [("zstd", [("shared", b"old")]), ("none", [("shared", b"new"), ("again", b"new")])]
        # These make new segments, so that all of the others is in sealed ones.
        batches += [("none", [("large", bytes(3000))])] * 2
        offset = 0
        for codec, records in batches:
            producer = confluent_kafka.Producer({
                "bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 300,
                "enable.idempotence": True,
            })  # fmt: skip
            for key, value in records:
                producer.produce(name, value, key, partition=0, timestamp=BASE_MS + offset, headers=[("h", b"v")])
                offset += 1
            assert producer.flush(PATIENCE_S) == 0
        checkpoint = cluster.log_directory / "cleaner-offset-checkpoint"
        wait_until(
            lambda: checkpoint.exists() and f"{name} 0 {end_offset}\n" in checkpoint.read_text(),
            "the end of Apache Kafka's cleaning",
            poll_s=0.1,
        )
        data = (cluster.log_directory / f"{name}-0" / f"{0:020d}.log").read_bytes()
        (HERE / f"{name}.log").write_bytes(data)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        capture_cleaned(Path(directory) / "kafka")
    with tempfile.TemporaryDirectory() as directory, ApacheKafka(Path(directory) / "kafka") as cluster:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
        names = [f"{client}-{codec}" for client in ("confluent", "aiokafka", "java") for codec in CODECS]
        names += [f"kafka_python-{codec}" for codec in KAFKA_PYTHON_CODECS]
        topics = [*names, "append_time", "transactions", "idempotent"]
        config = {"append_time": {"message.timestamp.type": "LogAppendTime"}}
        futures = admin.create_topics(
            [
                confluent_kafka.admin.NewTopic(
                    name, 1, 1, config={"max.message.bytes": "2000000", **config.get(name, {})}
                )
                for name in topics
            ]
        )
        for future in futures.values():
            future.result(PATIENCE_S)
        for codec in CODECS:
            send_with_confluent(cluster.bootstrap, f"confluent-{codec}", codec)
            if codec in KAFKA_PYTHON_CODECS:
                send_with_kafka_python(cluster.bootstrap, f"kafka_python-{codec}", codec)
            asyncio.run(send_with_aiokafka(cluster.bootstrap, f"aiokafka-{codec}", codec))
            send_with_java(cluster, f"java-{codec}", codec)
        send_with_confluent(cluster.bootstrap, "append_time", "lz4")
        send_with_confluent(cluster.bootstrap, "idempotent", "none", **{"enable.idempotence": True})
        send_transactions(cluster.bootstrap, "transactions")
        for name in topics:
            segments = sorted((cluster.log_directory / f"{name}-0").glob("*.log"))
            data = b"".join(segment.read_bytes() for segment in segments)
            (HERE / f"{name}.log").write_bytes(data)
            print(f"{name:24}{len(data):8} bytes")


if __name__ == "__main__":
    main()
