"""What the log directories of one broker have, as a registry is made again from it. Pure: text in, values out.

``kafkalite cluster recover-registry --to FILE`` writes it on a host, and ``--from`` reads it; a running broker answers
the same (``broker.recovery_answer``). It is JSON,
``{"version":1,"broker":N,"cluster_id":...,"incarnation":"...","zxid":"...","producer_id":"...","compacted":[TOPIC,...],
"set_aside":[DIRECTORY,...],"problems":[TEXT,...],"logs":[LOG,...],"topics":[TOPIC,...]}``. A LOG is an array that is
read by its places::

    topic, partition, topic id ("": it names none), last_epoch, end_offset, highest_epoch, damaged, high_watermark

A TOPIC, which only a running broker knows, is an array, too: ``name, topic id, {PARTITION: [BROKER,...]}, {NAME:
VALUE}``. Files of earlier versions have no ``topics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, Incarnation, TopicPartition, topic_name_problem
from spark_kafkalite.registry.node_json import (
    MAX_INT32,
    MAX_INT64,
    MalformedNode,
    array,
    decode_object,
    encode_object,
    mapping,
    number,
    reading,
    text,
)
from spark_kafkalite.registry.znodes import MAX_PARTITIONS, uuid_bytes, uuid_text

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class HostLog:
    """The log of one partition.

    ``last_epoch`` is the leader epoch of the last record (-1: there is none), ``highest_epoch`` the largest one that
    any of its files names. ``end_offset`` is behind the last whole batch. ``damaged``: something before that is
    missing. ``high_watermark`` is the one that the broker has noted.
    """

    key: TopicPartition
    topic_id: bytes | None = None
    last_epoch: int = -1
    end_offset: int = 0
    highest_epoch: int = -1
    damaged: bool = False
    high_watermark: int = 0

    @property
    def rank(self) -> tuple[int, int, bool]:
        """The larger, the better the log; as ``registry.controller.best_log`` has it."""
        return (self.last_epoch, self.end_offset, not self.damaged) if self.end_offset else (-1, 0, True)


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as the registry had it when the broker saw it last: its replicas by partition, and its own settings."""

    name: str
    topic_id: bytes
    replicas: Mapping[int, tuple[BrokerId, ...]]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HostLogs:
    """What one broker has. ``cluster_id`` is None where no directory names it.

    ``incarnation`` is the run of the broker that wrote the logs. ``zxid``: how far the registry had come that it knew.
    ``producer_id`` is the largest in the logs, -1 for none. ``compacted``: topics that the cleaner has compacted.
    ``set_aside``: directories that end in ``-stray``, which do not count. ``topics``: all topics of the cluster, as far
    as the broker ran and knew them.
    """

    broker_id: BrokerId
    cluster_id: str | None = None
    incarnation: Incarnation = UNKNOWN_INCARNATION
    zxid: int = 0
    producer_id: int = -1
    logs: tuple[HostLog, ...] = ()
    compacted: frozenset[str] = frozenset()
    set_aside: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    topics: tuple[KnownTopic, ...] = ()

    def encode(self) -> bytes:
        logs = [
            [
                log.key.topic,
                log.key.partition,
                "" if log.topic_id is None else uuid_text(log.topic_id),
                log.last_epoch,
                log.end_offset,
                log.highest_epoch,
                log.damaged,
                log.high_watermark,
            ]
            for log in self.logs
        ]
        fields: dict[str, Any] = {
            "version": _VERSION,
            "broker": self.broker_id,
            "cluster_id": self.cluster_id,
            "incarnation": str(self.incarnation),
            "zxid": str(self.zxid),
            "producer_id": str(self.producer_id),
            "compacted": sorted(self.compacted),
            "set_aside": list(self.set_aside),
            "problems": list(self.problems),
            "logs": logs,
            "topics": [
                [
                    each.name,
                    uuid_text(each.topic_id),
                    {str(partition): list(replicas) for partition, replicas in each.replicas.items()},
                    dict(each.config),
                ]
                for each in self.topics
            ],
        }
        return encode_object(fields) + b"\n"

    @classmethod
    def decode(cls, name: str, data: bytes) -> HostLogs:
        """Return what the file ``name`` holds. ConfigError when it cannot be read: a part would not do."""
        try:
            fields = decode_object(name, data)
            with reading(name, data):
                if fields["version"] != _VERSION:
                    raise ValueError(f"version {fields['version']} is not known, only {_VERSION} is")
                cluster_id = fields["cluster_id"]
                if cluster_id is not None:
                    uuid_bytes(text(cluster_id))
                return cls(
                    BrokerId(number(fields["broker"], 0, MAX_INT32)),
                    cluster_id,
                    Incarnation(number(fields["incarnation"], UNKNOWN_INCARNATION, MAX_INT64)),
                    number(fields["zxid"], 0, MAX_INT64),
                    number(fields["producer_id"], -1, MAX_INT64),
                    tuple(map(_log, array(fields["logs"]))),
                    frozenset(map(text, array(fields["compacted"]))),
                    tuple(map(text, array(fields["set_aside"]))),
                    tuple(map(text, array(fields["problems"]))),
                    tuple(map(_topic, array(fields.get("topics", [])))),
                )
        except MalformedNode as error:
            raise ConfigError(
                f"{name} is not what kafkalite cluster recover-registry --to writes, or not the whole of it: "
                f"{error.__cause__}"
            ) from error


def _log(fields: Any) -> HostLog:
    topic, partition, topic_id, last_epoch, end_offset, highest_epoch, damaged, high_watermark = array(fields)
    problem = topic_name_problem(text(topic))
    if problem:
        raise ValueError(problem)
    return HostLog(
        TopicPartition(topic, number(partition, 0, MAX_PARTITIONS - 1)),
        uuid_bytes(topic_id) if text(topic_id) else None,
        number(last_epoch, -1, MAX_INT32),
        number(end_offset, 0, MAX_INT64),
        number(highest_epoch, -1, MAX_INT32),
        bool(damaged),
        number(high_watermark, 0, MAX_INT64),
    )


def _topic(fields: Any) -> KnownTopic:
    name, topic_id, replicas, config = array(fields)
    problem = topic_name_problem(text(name))
    if problem:
        raise ValueError(problem)
    return KnownTopic(
        name,
        uuid_bytes(text(topic_id)),
        {
            number(partition, 0, MAX_PARTITIONS - 1): tuple(
                BrokerId(number(each, 0, MAX_INT32)) for each in array(some)
            )
            for partition, some in mapping(replicas).items()
        },
        {text(setting): text(value) for setting, value in mapping(config).items()},
    )
