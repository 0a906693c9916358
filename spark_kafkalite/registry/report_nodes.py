"""What brokers report of their logs while partitions have no leader: paths and payloads of /kafkalite/logs. Pure.

Each broker has as many ephemeral nodes as it needs, /kafkalite/logs/N-I for broker N and a number I that it does not
use again: so a path and a version are those of one text for ever. A node is JSON:
``{"version":1,"broker":N,"incarnation":"I","logs":[LOG,...]}``, and a LOG an array that is read by its places::

    topic, partition, created_zxid (as text), version, last_epoch, end_offset, epochs, damaged, gone, high_watermark,
    log_start_offset, leader_epoch, topic_id

``created_zxid`` and ``version`` are those of the state node that the log was reported for; a report for another state,
or of another incarnation than the broker is registered as, does not count. ``epochs`` are the last three entries of the
log's list of leader epochs, ``damaged`` its ranges of offsets that it had and has no more (the end exclusive). What
stands behind the places that are known here, a later version's, is passed over. ``high_watermark`` and what follows it
may be missing: earlier versions do not write them.

A node that cannot be read raises MalformedNode, and counts as no report at all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, Incarnation, TopicPartition, topic_name_problem
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.node_json import (
    MAX_INT32,
    MAX_INT64,
    array,
    decode_object,
    encode_object,
    number,
    reading,
    text,
)
from spark_kafkalite.registry.znodes import LOG_REPORTS, MAX_EPOCH, MAX_PARTITIONS, uuid_bytes, uuid_text
from spark_kafkalite.slices import Work

# No node may be larger. Ours stay far below, so that one is read and written in a fraction of a slice.
MAX_NODE_BYTES: Final = 500_000
FULL_NODE_BYTES: Final = 32_768
MAX_EPOCHS: Final = 3
# More damaged ranges than these are told as one, up to the end of the last.
MAX_DAMAGED: Final = 20
# Numbers of nodes; a broker's nodes are far fewer.
MAX_NODES: Final = 1_000_000_000
# Why a broker has no log of a partition that it could lead with.
MISSING: Final = "missing"
EMPTY: Final = "empty"
OFFLINE: Final = "offline"
_GONE: Final = ("", MISSING, EMPTY, OFFLINE)
_NAME = re.compile(r"([0-9]{1,10})-([0-9]{1,9})")
_LOGS_AT_ONCE: Final = 50

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a broker's log of one partition has; ``gone`` is why it has none, "" when it has one.

    ``last_epoch`` is the leader epoch of the last record (-1: there is none); ``end_offset`` leaves out a hole at the
    end. ``high_watermark`` is the highest one that the replica remembers: the log may end below it.
    ``log_start_offset`` is -1 where the report does not have it, and where there is no log. ``leader_epoch`` is the
    highest one that the broker knows of the partition, also one without records; -1: none. ``topic_id`` is the log's
    own, as text, where the topic's node names no id; "" elsewhere.
    """

    created_zxid: int
    version: int
    last_epoch: int = -1
    end_offset: int = 0
    epochs: Ranges = ()
    damaged: Ranges = ()
    gone: str = ""
    high_watermark: int = 0
    log_start_offset: int = -1
    leader_epoch: int = -1
    topic_id: str = ""

    def is_for(self, state: PartitionState) -> bool:
        """Whether this was reported of the log under exactly this state."""
        return (self.created_zxid, self.version) == (state.created_zxid, state.version)

    @property
    def has_records(self) -> bool:
        """Whether there is a log that ends behind offset 0."""
        return not self.gone and self.end_offset > 0

    @property
    def is_emptied(self) -> bool:
        """Whether a sound log starts where it ends, behind offset 0: what it had was deleted, and it has no record."""
        return self.has_records and not self.damaged and self.log_start_offset == self.end_offset


@dataclass(frozen=True, slots=True)
class ReportNode:
    """One node: its name and version, a broker, its incarnation, and what some of its logs have."""

    name: str
    broker_id: BrokerId
    incarnation: Incarnation
    logs: Mapping[TopicPartition, LogReport]
    version: int = 0


# By broker, what has its report of a partition.
Reported = Mapping[BrokerId, ReportNode]


def counted(
    key: TopicPartition, state: PartitionState, live: Mapping[int, BrokerInfo], reported: Reported
) -> dict[BrokerId, LogReport]:
    """Return the reports of a partition that count: of registered incarnations, for the present state."""
    return {
        broker: node.logs[key]
        for broker, node in reported.items()
        if broker in live and live[broker].incarnation == node.incarnation and node.logs[key].is_for(state)
    }


def reporting_brokers(state: PartitionState, live: Mapping[int, BrokerInfo]) -> list[BrokerId]:
    """Return the registered brokers that report their logs of a partition without a leader."""
    named = dict.fromkeys((*state.replicas, *state.isr, *state.eligible))
    return [each for each in named if each in live and live[each].incarnation != UNKNOWN_INCARNATION]


def report_path(broker_id: int, number: int) -> str:
    return f"{LOG_REPORTS}/{broker_id}-{number}"


def broker_of_report(name: str) -> BrokerId | None:
    """Return the broker whose report a child of /kafkalite/logs is, None when it is no report."""
    found = _NAME.fullmatch(name)
    if found is None or int(found.group(1)) > MAX_INT32 or int(found.group(2)) >= MAX_NODES:
        return None
    return BrokerId(int(found.group(1)))


def encode_log(key: TopicPartition, report: LogReport) -> bytes:
    """Return one element of a node's logs; at most about a kilobyte."""
    damaged = list(report.damaged)
    if len(damaged) > MAX_DAMAGED:
        damaged[MAX_DAMAGED - 1 :] = [(damaged[MAX_DAMAGED - 1][0], damaged[-1][1])]
    fields = [
        key.topic,
        key.partition,
        # As text: many readers of JSON have no whole numbers beyond 2^53.
        str(report.created_zxid),
        report.version,
        report.last_epoch,
        report.end_offset,
        [list(each) for each in report.epochs[-MAX_EPOCHS:]],
        [list(each) for each in damaged],
        report.gone,
        report.high_watermark,
        report.log_start_offset,
        report.leader_epoch,
        report.topic_id,
    ]
    return encode_object({"": fields})[4:-1]


def encode_node(broker_id: int, incarnation: int, logs: Iterable[bytes]) -> bytes:
    """Return a node of these logs, as :func:`encode_log` gives each."""
    head = encode_object({"version": 1, "broker": broker_id, "incarnation": str(incarnation)})
    return head[:-1] + b',"logs":[' + b",".join(logs) + b"]}"


def decode_node(name: str, data: bytes) -> Work[ReportNode]:
    """Read a node of this name below /kafkalite/logs, in slices. Raises MalformedNode."""
    path = f"{LOG_REPORTS}/{name}"
    with reading(path, data):
        if len(data) > MAX_NODE_BYTES:
            raise ValueError(f"{len(data)} bytes are more than {MAX_NODE_BYTES}")
    fields = decode_object(path, data)
    with reading(path, data):
        number(fields["version"], 1, 1)
        broker_id = BrokerId(number(fields["broker"], 0, MAX_INT32))
        if broker_id != broker_of_report(name):
            raise ValueError(f"it names broker {broker_id}")
        incarnation = Incarnation(number(fields["incarnation"], 1, MAX_INT64))
        logs: dict[TopicPartition, LogReport] = {}
        for index, each in enumerate(array(fields["logs"])):
            key, report = _log(each)
            if key in logs:
                raise ValueError(f"{key} is named twice")
            logs[key] = report
            if index % _LOGS_AT_ONCE == 0:
                yield None
        return ReportNode(name, broker_id, incarnation, logs)


def _log(value: Any) -> tuple[TopicPartition, LogReport]:
    topic, partition, created_zxid, version, last_epoch, end_offset, epochs, damaged, gone, *more = array(value)
    if problem := topic_name_problem(text(topic)):
        raise ValueError(problem)
    if text(gone) not in _GONE:
        raise ValueError(f"{gone[:40]!r} is none of {_GONE}")
    report = LogReport(
        number(created_zxid, 0, MAX_INT64),
        number(version, 0, MAX_INT32),
        number(last_epoch, -1, MAX_EPOCH),
        number(end_offset, 0, MAX_INT64),
        _ascending(epochs, MAX_EPOCHS, MAX_EPOCH),
        _ranges(damaged),
        gone,
        number(more[0], 0, MAX_INT64) if more else 0,
        number(more[1], -1, MAX_INT64) if len(more) > 1 else -1,
        number(more[2], -1, MAX_EPOCH) if len(more) > 2 else -1,
        _topic_id(more[3]) if len(more) > 3 else "",
    )
    return TopicPartition(topic, number(partition, 0, MAX_PARTITIONS - 1)), report


def _topic_id(value: Any) -> str:
    found = text(value)
    return uuid_text(uuid_bytes(found)) if found else ""


def _ascending(value: Any, most: int, last: int) -> Ranges:
    """Return pairs of a leader epoch and its start offset, which both ascend."""
    found = tuple((number(epoch, 0, last), number(start, 0, MAX_INT64)) for epoch, start in _few(value, most))
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(found):
        if epoch >= next_epoch or start > next_start:
            raise ValueError(f"epoch {next_epoch} at {next_start} does not follow {epoch} at {start}")
    return found


def _ranges(value: Any) -> Ranges:
    """Return ranges of offsets, which ascend and do not meet."""
    found = tuple((number(start, 0, MAX_INT64), number(end, 0, MAX_INT64)) for start, end in _few(value, MAX_DAMAGED))
    after = -1
    for start, end in found:
        if not after < start < end:
            raise ValueError(f"the range {start} to {end} is empty, or does not follow the one before")
        after = end
    return found


def _few(value: Any, most: int) -> list[Any]:
    found = array(value)
    if len(found) > most:
        raise ValueError(f"{len(found)} elements are more than {most}")
    return found
