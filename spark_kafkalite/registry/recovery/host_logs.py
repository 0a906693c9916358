"""What the log directories of one broker have, as a registry is made again from it. Pure: text in, values out.

``kafkalite cluster recover-registry --to FILE`` writes it on a host, and ``--from`` reads it: JSON,
``{"version":1,"broker":N,"cluster_id":...,"incarnation":"...","zxid":"...","producer_id":"...","compacted":[TOPIC,...],
"set_aside":[DIRECTORY,...],"problems":[TEXT,...],"logs":[LOG,...]}``, and a LOG an array that is read by its places::

    topic, partition, topic id ("": it names none), last_epoch, end_offset, highest_epoch, damaged, high_watermark
"""

from __future__ import annotations

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
class HostLogs:
    """What one broker has. ``cluster_id`` is None where no directory names it.

    ``incarnation`` is the run of the broker that wrote the logs. ``zxid``: how far the registry had come that it knew.
    ``producer_id`` is the largest in the logs, -1 for none. ``compacted``: topics that the cleaner has compacted.
    ``set_aside``: directories that end in ``-stray``, which do not count.
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
                )
        except MalformedNode as error:
            raise ConfigError(
                f"{name} is no file of kafkalite cluster recover-registry --to, or not a whole one: {error.__cause__}"
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
