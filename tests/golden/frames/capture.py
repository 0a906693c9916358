"""Write ``verdicts.json``: what Apache Kafka, Java's reader and librdkafka make of each of the frames.

    python -m tests.golden.frames.capture

It starts an Apache Kafka 4.3, which keeps batches as they arrive, and sends it one batch for each frame. What it
accepts a librdkafka consumer reads from there; all frames are read by the classes of the Java consumer. Run it when
``frames.py`` has changed, or another version is what brokers are to agree with.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import version as confluent_version
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafkalite.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.golden.frames.frames import RECORDS, VALUES, batch_with, frames
from tests.interop.support.java_clients import compile_java
from tests.interop.support.raw_client import RawClient
from tests.lab import apache_kafka
from tests.lab.java import run_java
from tests.patience import PATIENCE_S

DIRECTORY = Path(__file__).parent
VERDICTS = DIRECTORY / "verdicts.json"
PRODUCE_VERSION = 9


def kafkas_verdict(client: RawClient, topic: str, partition: int, batch: bytes) -> int:
    """Return the error code that Apache Kafka answers, 0 when it takes the batch."""
    data = TopicProduceData(
        name=topic, partition_data=[PartitionProduceData(index=partition, records=memoryview(batch))]
    )
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
    return int(client.call(request, PRODUCE_VERSION).responses[0].partition_responses[0].error_code)


def librdkafka_reads(bootstrap: str, topic: str, partition: int) -> str:
    """Return what a librdkafka consumer reads from a partition that holds one batch."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "frames", "enable.auto.commit": False})
    values: list[Any] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while len(values) < RECORDS:
            message = consumer.poll(10)
            if message is None:
                break
            if message.error():
                return str(message.error().name())
            values.append(message.value())
    finally:
        consumer.close()
    return "read" if values == VALUES else f"{len(values)} records"


def librdkafkas_verdicts(bootstrap: str, topic: str, partitions: list[int]) -> dict[int, str]:
    """Return what a librdkafka consumer makes of each partition. Some frames end its process."""
    found: dict[int, str] = {}
    while left := [number for number in partitions if number not in found]:
        command = [sys.executable, "-m", "tests.golden.frames.capture", bootstrap, topic, *map(str, left)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found.update(zip(left, done.stdout.splitlines(), strict=False))
        if done.returncode < 0 and len(done.stdout.splitlines()) < len(left):
            found[left[len(done.stdout.splitlines())]] = signal.Signals(-done.returncode).name
    return found


def javas_verdicts(batches: list[bytes], directory: Path) -> list[str]:
    """Return what Java's classes make of batches: "read", or an exception's name."""
    file = directory / "batches"
    file.write_text("".join(base64.b64encode(batch).decode() + "\n" for batch in batches))
    lines = run_java(compile_java(DIRECTORY / "FrameReader.java"), "FrameReader", str(file)).stdout.splitlines()
    expected = ",".join([str(RECORDS), *(base64.b64encode(value).decode() for value in VALUES)])
    return ["read" if line == expected else line.removeprefix("! ") for line in lines]


def main() -> None:
    """Ask all three."""
    table: dict[str, dict[str, dict[str, object]]] = {}
    with tempfile.TemporaryDirectory() as scratch, apache_kafka.ApacheKafka(Path(scratch) / "node") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for codec, cases in frames().items():
            topic = f"frames-{codec}"
            admin.create_topics([NewTopic(topic, len(cases), 1, config={"retention.ms": "-1"})])[topic].result(
                PATIENCE_S
            )
            batches = [batch_with(codec, frame) for frame in cases.values()]
            java = javas_verdicts(batches, Path(scratch))
            rows: dict[str, dict[str, object]] = {}
            with RawClient(kafka.bootstrap) as client:
                for number, (name, frame) in enumerate(cases.items()):
                    code = kafkas_verdict(client, topic, number, batches[number])
                    rows[name] = {"kafka": code, "java": java[number], "frame": base64.b64encode(frame).decode()}
            accepted = [number for number, row in enumerate(rows.values()) if row["kafka"] == 0]
            by_partition = librdkafkas_verdicts(kafka.bootstrap, topic, accepted)
            for number, row in enumerate(rows.values()):
                if number in by_partition:
                    row["librdkafka"] = by_partition[number]
            table[codec] = rows
            for name, row in rows.items():
                print(
                    codec, name, *(row[asked] for asked in ("kafka", "java", "librdkafka") if asked in row), sep=" | "
                )
    about = {"Apache Kafka and Java": "4.3.0", "confluent-kafka": str(confluent_version()[0])}
    VERDICTS.write_text(json.dumps({"versions": about, "codecs": table}, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for number in sys.argv[3:]:
            print(librdkafka_reads(sys.argv[1], sys.argv[2], int(number)), flush=True)
    else:
        main()
