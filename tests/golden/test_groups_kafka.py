"""What we write into ``__consumer_offsets``, in the words of Apache Kafka's own tool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_kafkalite.coordinator.groups.records import (
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
    OffsetValue,
    RecordKey,
    RecordValue,
    encode_key,
    encode_value,
)
from spark_kafkalite.records import kernel
from tests.lab import apache_kafka

pytestmark = [pytest.mark.kafka]

SUBSCRIPTION = bytes.fromhex("0001 00000001 0006 676f6c64656e ffffffff 00000000")
ASSIGNMENT = bytes.fromhex("0001 00000001 0006 676f6c64656e 00000001 00000002 ffffffff")
MEMBER = MemberMetadata("m-1", "static-1", "client", "/127.0.0.1", 300_000, 6000, SUBSCRIPTION, ASSIGNMENT)
RECORDS: list[tuple[RecordKey, RecordValue | None]] = [
    (OffsetKey("group caf\u00e9", "golden", 2), OffsetValue(17, 3, "up to here \u2713", 1_700_000_000_000)),
    (OffsetKey("old", "golden", 0), OffsetValue(4, -1, "", 1_700_000_000_000, 1_700_000_060_000)),
    (GroupKey("g"), GroupMetadata("consumer", 7, "range", "m-1", 1_700_000_000_001, (MEMBER,))),
    (GroupKey("empty"), GroupMetadata("", 0, None, None, 1_700_000_000_002)),
    (OffsetKey("gone", "golden", 1), None),
    (GroupKey("gone"), None),
]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Key and payload of each record as ``DumpLogSegments --offsets-decoder`` prints them."""
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    batch = kernel.OpenBatch(1 << 20)
    for key, value in RECORDS:
        batch.append(1_700_000_000_000, encode_key(key), None if value is None else encode_value(value), None)
    directory = tmp_path_factory.mktemp("dumped") / "__consumer_offsets-0"
    directory.mkdir()
    path = directory / f"{0:020d}.log"
    path.write_bytes(batch.build())
    answer = apache_kafka.kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(path)
    ).stdout
    return [_parsed(line) for line in answer.splitlines() if line.startswith("| offset")]


def _parsed(line: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    _, _, rest = line.partition(" key: ")
    key, _, payload = rest.partition(" payload: ")
    return json.loads(key), None if payload == "<DELETE>" else json.loads(payload)


def test_apache_kafka_reads_offsets(dumped: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    key, value = dumped[0]
    assert key == {"type": "1", "data": {"group": "group caf\u00e9", "topic": "golden", "partition": 2}}
    assert value is not None and value["version"] == "3"
    assert value["data"] == {
        "offset": 17,
        "leaderEpoch": 3,
        "metadata": "up to here \u2713",
        "commitTimestamp": 1_700_000_000_000,
    }
    _, old = dumped[1]
    assert old is not None and old["version"] == "1"
    assert old["data"]["expireTimestamp"] == 1_700_000_060_000


def test_apache_kafka_reads_groups(dumped: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    key, value = dumped[2]
    assert key == {"type": "2", "data": {"group": "g"}}
    assert value is not None and value["version"] == "3"
    data = value["data"]
    (member,) = data.pop("members")
    assert data == {
        "protocolType": "consumer",
        "generation": 7,
        "protocol": "range",
        "leader": "m-1",
        "currentStateTimestamp": 1_700_000_000_001,
    }
    assert (member["memberId"], member["groupInstanceId"], member["clientHost"]) == ("m-1", "static-1", "/127.0.0.1")
    assert (member["rebalanceTimeout"], member["sessionTimeout"]) == (300_000, 6000)
    _, empty = dumped[3]
    assert empty is not None
    assert (empty["data"]["protocol"], empty["data"]["leader"], empty["data"]["members"]) == (None, None, [])


def test_apache_kafka_reads_tombstones(dumped: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    assert [(key["type"], value) for key, value in dumped[4:]] == [("1", None), ("2", None)]
