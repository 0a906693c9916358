"""Makes ``records.json``: what Apache Kafka's group coordinator writes into ``__consumer_offsets``.

    python tests/golden/groups/capture.py

Needs Java and Apache Kafka's jars (see ``tests.lab.apache_kafka``). Run it again only to take in a new
case; the file is checked in, so that the unit tests need neither.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafkalite.records import kernel
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.interop.support.raw_client import RawClient
from tests.lab.apache_kafka import ApacheKafka
from tests.patience import PATIENCE_S

HERE = Path(__file__).parent
TOPIC = "golden"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, ApacheKafka(Path(directory) / "kafka") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(PATIENCE_S)
        work(cluster.bootstrap, admin)
        cluster.stop()
        found = []
        for path in sorted(cluster.log_directory.glob("__consumer_offsets-*/*.log")):
            found += records_of(path.read_bytes())
    text = ",\n".join(json.dumps(record) for record in found)
    (HERE / "records.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
    print(f"{len(found)} records")


def work(bootstrap: str, admin: AdminClient) -> None:
    """Make Kafka write every kind of record."""
    common = {"bootstrap.servers": bootstrap, "session.timeout.ms": 6000, "client.id": "golden client"}
    simple = ck.Consumer({**common, "group.id": "simple caf\u00e9"})
    simple.commit(
        offsets=[
            ck.TopicPartition(TOPIC, 0, 17, metadata="read up to here \u2713", leader_epoch=0),
            ck.TopicPartition(TOPIC, 1, 2**40),
        ],
        asynchronous=False,
    )
    simple.close()
    commit_with_retention(bootstrap)
    for settings in ({}, {"group.instance.id": "static-1", "partition.assignment.strategy": "cooperative-sticky"}):
        group = "static" if settings else "dynamic"
        member = ck.Consumer({**common, "group.id": group, **settings})
        member.subscribe([TOPIC])
        while not member.assignment():
            member.poll(0.1)
        member.commit(offsets=[ck.TopicPartition(TOPIC, 2, 5)], asynchronous=False)
        member.close()
    # Tombstones.
    ((_, deleted),) = admin.delete_consumer_groups(["simple caf\u00e9"]).items()
    deleted.result(PATIENCE_S)


def commit_with_retention(bootstrap: str) -> None:
    """Commit as old clients do, which say themselves how long an offset is to be kept."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="old")
    request = OffsetCommitRequest(
        group_id="old",
        retention_time_ms=3_600_000,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    with RawClient(bootstrap) as client:
        answer = client.call(request, 2)
    assert answer.topics[0].partitions[0].error_code == 0, answer


def records_of(data: bytes) -> list[dict[str, str | None]]:
    """The records of some whole batches, as hexadecimal keys and values."""
    builder, position = kernel.ColumnBuilder(False), 0
    for header in kernel.scan_headers(data):
        builder.add_batch(data, position, header, None)
        position += header.size_bytes
    columns = builder.finish()
    cells = ((columns.key_at(row), columns.value_at(row)) for row in range(columns.count))
    return [
        {"key": key.hex() if key else None, "value": None if value is None else value.hex()} for key, value in cells
    ]


if __name__ == "__main__":
    main()
