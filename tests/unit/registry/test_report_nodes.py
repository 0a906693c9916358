"""What brokers report of their logs: nodes that are written are read as they were, and damaged ones say nothing."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.report_nodes import (
    EMPTY,
    MAX_DAMAGED,
    MAX_NODE_BYTES,
    MISSING,
    OFFLINE,
    LogReport,
    Ranges,
    ReportNode,
    broker_of_report,
    counted,
    decode_node,
    encode_log,
    encode_node,
    report_path,
)
from spark_kafkalite.slices import run_whole
from tests.seeds import SEED

KEY = TopicPartition("t", 3)
ID = "YWFhYWFhYWFhYWFhYWFhYQ"
WHOLE = LogReport(2**60, 7, 5, 1500, ((3, 0), (4, 500), (5, 1200)), ((100, 200),))


def encoded(*logs: tuple[TopicPartition, LogReport]) -> bytes:
    return encode_node(2, 77, [encode_log(*each) for each in logs])


def decoded(data: bytes, name: str = "2-0") -> ReportNode:
    return run_whole(decode_node(name, data))


def a_report(chance: random.Random) -> LogReport:
    created, version = chance.randrange(2**63), chance.randrange(2**31)
    if chance.random() < 0.2:
        gone = chance.choice((MISSING, EMPTY, OFFLINE))
        return LogReport(created, version, gone=gone, high_watermark=chance.randrange(2**63))
    start = chance.randrange(-1, 2**63 - 1)
    starts = sorted(chance.sample(range(2**40), 3))
    epochs = tuple(zip(sorted(chance.sample(range(2**31 - 2), 3)), starts, strict=True))[: chance.randrange(4)]
    bounds = sorted(chance.sample(range(2**40), 2 * chance.randrange(MAX_DAMAGED + 1)))
    damaged: Ranges = tuple(zip(bounds[::2], bounds[1::2], strict=True))
    last_epoch, end = chance.randrange(-1, 2**31 - 1), chance.randrange(2**63)
    highest = chance.randrange(last_epoch, 2**31 - 1)
    return LogReport(created, version, last_epoch, end, epochs, damaged, log_start_offset=start, leader_epoch=highest)


def test_what_is_written_is_read() -> None:
    chance = random.Random(SEED)
    for _ in range(1000):
        logs = {TopicPartition(f"t{n % 3}", n): a_report(chance) for n in range(chance.randrange(5))}
        assert decoded(encoded(*logs.items())) == ReportNode("2-0", BrokerId(2), Incarnation(77), logs)


def test_more_damaged_ranges_than_a_node_has_room_for_are_told_as_one() -> None:
    damaged = tuple((10 * n, 10 * n + 5) for n in range(1000))
    report = decoded(encoded((KEY, LogReport(1, 1, 1, 10_000, (), damaged)))).logs[KEY]
    assert report.damaged == (*damaged[: MAX_DAMAGED - 1], (damaged[MAX_DAMAGED - 1][0], damaged[-1][1]))


def with_log(**changes: object) -> bytes:
    names = (
        "topic",
        "partition",
        "created",
        "version",
        "last_epoch",
        "end",
        "epochs",
        "damaged",
        "gone",
        "hw",
        "start",
        "leader_epoch",
        "topic_id",
    )
    fields = json.loads(encoded((KEY, WHOLE)))
    values = dict(zip(names, fields["logs"][0], strict=True)) | changes
    return json.dumps({**fields, "logs": [list(values.values())]}).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (with_log(topic="a/b"), "contains"),
        (with_log(topic=3), "not a text"),
        (with_log(partition=-1), "is not from 0"),
        (with_log(partition=100_000), "is not from 0"),
        (with_log(created=str(2**63)), "is not from 0"),
        (with_log(version=2**31), "is not from 0"),
        (with_log(version=True), "not a whole number"),
        (with_log(last_epoch=-2), "is not from -1"),
        (with_log(end=2**63), "is not from 0"),
        (with_log(epochs=[[1, 0], [2, 1], [3, 2], [4, 3]]), "4 elements are more than 3"),
        (with_log(epochs=[[2, 0], [2, 5]]), "does not follow"),
        (with_log(epochs=[[2, 9], [3, 5]]), "does not follow"),
        (with_log(epochs=[[2]]), "unpack"),
        (with_log(damaged=[[5, 5]]), "is empty"),
        (with_log(damaged=[[5, 9], [9, 12]]), "does not follow"),
        (with_log(damaged=[[2 * n, 2 * n + 1] for n in range(21)]), "21 elements are more than 20"),
        (with_log(gone="away"), "is none of"),
        (with_log(hw=-1), "is not from 0"),
        (with_log(start=-2), "is not from -1"),
        (with_log(leader_epoch=2**31 - 1), "is not from -1"),
        (with_log(topic_id="t"), "is not an id"),
        (encode_node(2, 77, [b"[]"]), "unpack"),
        (encode_node(2, 77, [encode_log(KEY, WHOLE)] * 2), "named twice"),
        (encode_node(2, 0, []), "is not from 1"),
        (encode_node(3, 77, []), "it names broker 3"),
        (encode_node(2, 77, []).replace(b'"version":1', b'"version":2'), "is not from 1"),
        (b"[]", "not an object"),
        (b"{}", "missing"),
        (encode_node(2, 77, []) + b" " * MAX_NODE_BYTES, "are more than 500000"),
    ],
)
def test_a_node_with_something_out_of_its_range_says_nothing(data: bytes, why: str) -> None:
    with pytest.raises(MalformedNode, match=why):
        decoded(data)


def test_damage_raises_nothing_else() -> None:
    chance = random.Random(SEED)
    whole = encoded((KEY, WHOLE), (TopicPartition("u", 0), LogReport(1, 1, gone=EMPTY)))
    read = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decoded(bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data))
        except MalformedNode:
            continue
        read += 1
    assert 0 < read < 3000


def test_what_later_versions_say_besides_is_passed_over_and_what_earlier_ones_do_not_say_is_missing() -> None:
    said = replace(WHOLE, high_watermark=1400, log_start_offset=3, leader_epoch=6, topic_id=ID)
    fields = json.loads(encoded((KEY, said)))
    log = fields["logs"][0]
    fields["logs"] = [[*log, {"more": 1}]]
    assert decoded(json.dumps(fields).encode()).logs == {KEY: said}
    for places, missing in enumerate(({"topic_id": ""}, {"leader_epoch": -1}, {"log_start_offset": -1}), 1):
        fields["logs"] = [log[:-places]]
        said = replace(said, **missing)  # type: ignore[arg-type]
        assert decoded(json.dumps(fields).encode()).logs == {KEY: said}
    fields["logs"] = [log[:-4]]
    assert decoded(json.dumps(fields).encode()).logs == {KEY: WHOLE}


def test_names_of_nodes() -> None:
    assert report_path(12, 3) == "/kafkalite/logs/12-3"
    assert broker_of_report("12-3") == 12
    for name in ("12", "12-", "-1-0", "a-0", "99999999999-0", "2147483648-0", "1-9999999999", "1-0-0", "\u0661-0"):
        assert broker_of_report(name) is None


def test_a_report_counts_for_one_state_and_one_incarnation() -> None:
    state = PartitionState((BrokerId(1), BrokerId(2)), version=7, created_zxid=50)
    live = {
        number: BrokerInfo(BrokerId(number), "h", 1, None, BrokerEpoch(1), incarnation=Incarnation(number * 10))
        for number in (1, 2)
    }
    good = LogReport(50, 7, 1, 5)
    for version, created, incarnation, counts in ((7, 50, 10, 1), (6, 50, 10, 0), (7, 49, 10, 0), (7, 50, 11, 0)):
        node = ReportNode("1-0", BrokerId(1), Incarnation(incarnation), {KEY: LogReport(created, version, 1, 5)})
        assert counted(KEY, state, live, {BrokerId(1): node}) == ({1: good} if counts else {})
    # It is not registered any more.
    node = ReportNode("1-0", BrokerId(1), Incarnation(10), {KEY: good})
    assert counted(KEY, state, {2: live[2]}, {BrokerId(1): node}) == {}
