"""What a registry is to hold that is made again from the logs of a cluster's brokers. Pure: values in, nodes out.

What can be known from logs: the cluster id, the topics with their ids and partitions, which brokers have them, and what
must not be given twice: leader epochs and producer ids. So consumers that remember an epoch, and idempotent producers
in the middle of a partition, go on. Nodes of an older registry stay, and are completed.

Each partition is written without a leader. The broker of the best log (``HostLog.rank``) is alone in the ISR, by the
run that wrote the log: it leads when it starts and can prove that the log is whole (rule R12), and the others copy it.
The best log has all records that were acknowledged to all in-sync replicas only if no replica is left out. So a
partition of which a replica was not read is named (``unread``), unless the operator goes on without that broker.

Brokers that ran when they were asked also know the replicas and the settings of topics as the registry had them.

The caller supplies what cannot be known: other settings, and the offsets of registry consumers. Because a topic's
retention is among them, a topic that is made again keeps everything until an operator sets a retention; one that the
cleaner has compacted is compacted again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, Protocol, TypeVar

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import (
    CONSUMER_OFFSETS_TOPIC,
    NO_LEADER_EPOCH,
    UNKNOWN_INCARNATION,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from spark_kafkalite.registry import deleted_topics, znodes
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK, PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock
from spark_kafkalite.registry.recovery.host_logs import HostLog, HostLogs, KnownTopic
from spark_kafkalite.registry.znodes import NO_LEADER, LeaderAndIsr, TopicAssignment

T = TypeVar("T")

# Numbers that were given out and left no trace in a log: ids of producers that have not sent, epochs of elections after
# which nothing was appended. A client that knows a higher epoch would wait for ever.
_SKIPPED_PRODUCER_IDS: Final = 1_000_000
_SKIPPED_EPOCHS: Final = 1_000
# Nothing may be removed before somebody has said what may.
_KEEP_ALL: Final = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class RecoveredTopic:
    """One topic as the registry will have it: of each partition the epoch of its state, and the broker in its ISR."""

    name: str
    topic_id: bytes
    epochs: Mapping[int, int]
    best: Mapping[int, BrokerId]
    without_log: tuple[int, ...]
    # None: the registry still has its settings.
    config: Mapping[str, str] | None
    # Whether these settings are not those that the topic had.
    is_config_lost: bool


@dataclass(slots=True)
class RecoveryPlan:
    """What a registry made again would hold, and what was found on the way.

    ``nodes`` differ from the existing ones, by path. ``unread``: partitions with brokers that may have a log of them
    and were not read. ``left_over``: logs, by broker, that belong to no topic of the registry; brokers set them aside,
    or delete them where the registry names their topic as deleted (``deleted_ids``, as text).
    ``without_logs``: topics of the registry that no broker that was read has a log of.
    """

    cluster_id: str
    topics: list[RecoveredTopic] = field(default_factory=list)
    next_producer_id: int = 0
    nodes: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unread: dict[TopicPartition, tuple[BrokerId, ...]] = field(default_factory=dict)
    left_over: list[tuple[BrokerId, TopicPartition, str]] = field(default_factory=list)
    deleted_ids: set[str] = field(default_factory=set)
    without_logs: list[str] = field(default_factory=list)
    set_aside: list[tuple[BrokerId, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the plan for machines."""
        return {
            "cluster_id": self.cluster_id,
            "next_producer_id": self.next_producer_id,
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": znodes.uuid_text(topic.topic_id),
                    "leader_epochs": list(topic.epochs.values()),
                    "in_sync": {str(number): broker for number, broker in topic.best.items()},
                    "partitions_without_log": list(topic.without_log),
                    "assumed_config": dict(topic.config) if topic.config is not None and topic.is_config_lost else None,
                }
                for topic in self.topics
            ],
            "topics_without_logs": self.without_logs,
            "unread": [
                {"topic": key.topic, "partition": key.partition, "brokers": list(brokers)}
                for key, brokers in sorted(self.unread.items())
            ],
            "left_over": [
                {"broker": broker, "topic": key.topic, "partition": key.partition, "topic_id": topic_id}
                for broker, key, topic_id in self.left_over
            ],
            "nodes": sorted(self.nodes),
            "problems": self.problems,
            "set_aside_before": [{"broker": broker, "directory": directory} for broker, directory in self.set_aside],
        }


def brokers_named(nodes: Mapping[str, bytes]) -> set[BrokerId]:
    """Return the brokers that the topics of a registry name as replicas."""
    return _replicas_in(_topics_of(nodes, lambda path, decode: _decoded(nodes[path], decode)))


def plan_recovery(
    hosts: Sequence[HostLogs],
    nodes: Mapping[str, bytes],
    *,
    without: Collection[int] = (),
    is_current: bool = False,
    offsets_config: Mapping[str, str] | None = None,
) -> RecoveryPlan:
    """Return the content that the registry with these nodes has to get.

    ``without``: brokers whose logs do not count, because they are lost. ``is_current``: the registry has come as far as
    the brokers have seen it, so states that contradict no log stay as they are. ``offsets_config``: settings of the
    topic for groups' offsets, where they are lost. ConfigError when what the hosts have contradicts each other, or the
    registry.
    """
    if not hosts:
        raise ConfigError("no broker's logs were read")
    return _Planning(hosts, nodes, frozenset(map(BrokerId, without)), is_current, offsets_config or {}).run()


class _Planning:
    def __init__(
        self,
        hosts: Sequence[HostLogs],
        nodes: Mapping[str, bytes],
        without: frozenset[BrokerId],
        is_current: bool,
        offsets_config: Mapping[str, str],
    ) -> None:
        self._hosts = {host.broker_id: host for host in hosts}
        if len(self._hosts) != len(hosts):
            raise ConfigError("the logs of one broker were given twice: name one file for each broker")
        self._nodes = nodes
        self._is_current = is_current
        self._offsets_config = offsets_config
        self.plan = RecoveryPlan("")
        self.plan.cluster_id = self._cluster_id()
        self._old = _topics_of(nodes, self._readable)
        self._away = _replicas_in(self._old) - self._hosts.keys() - without
        self._without = without
        # What brokers that ran knew of topics; of two the one that knew more partitions. A name may have had two ids.
        self._known: dict[tuple[str, bytes], KnownTopic] = {}
        for known in sorted((each for host in hosts for each in host.topics), key=lambda each: len(each.replicas)):
            self._known[known.name, known.topic_id] = known
        for host in hosts:
            of = f"broker {host.broker_id}: " if len(hosts) > 1 else ""
            self.plan.problems += [f"{of}{problem}" for problem in host.problems]
            self.plan.set_aside += [(host.broker_id, directory) for directory in host.set_aside]

    def run(self) -> RecoveryPlan:
        plan = self.plan
        self._put(znodes.CLUSTER_ID, znodes.encode_cluster_id(plan.cluster_id), keep=True)
        for path in znodes.PERSISTENT_PATHS:
            self._put(path, b"", keep=True)
        found: dict[str, dict[BrokerId, dict[int, HostLog]]] = {}
        for host in self._hosts.values():
            for log in host.logs:
                found.setdefault(log.key.topic, {}).setdefault(host.broker_id, {})[log.key.partition] = log
        self._check_names(found)
        for name, logs in sorted(found.items()):
            self._plan_topic(name, logs)
        for name in sorted(self._old.keys() - found.keys()):
            if not self._is_current:
                plan.without_logs.append(name)
                self._plan_states(name, self._old[name], {}, is_known=True)
        self._plan_unread_topics(found)
        plan.deleted_ids = set(map(znodes.uuid_text, self._deleted_ids))
        self._plan_producer_ids()
        self._plan_controller_epoch()
        return plan

    # Reading --------------------------------------------------------------------------------------------------------

    def _readable(self, path: str, decode: Callable[[bytes], T]) -> T | None:
        """Return a node's decoded content; None when it is missing or cannot be read, which is noted."""
        data = self._nodes.get(path)
        if data is None:
            return None
        try:
            return decode(data)
        except MalformedNode as malformed:
            self.plan.problems.append(str(malformed))
            return None

    def _cluster_id(self) -> str:
        said = {host.cluster_id: host.broker_id for host in self._hosts.values() if host.cluster_id is not None}
        if len(said) > 1:
            each = ", ".join(f"broker {broker}: {cluster_id}" for cluster_id, broker in said.items())
            raise ConfigError(f"the brokers belong to different clusters ({each}): name those of one cluster")
        mine = next(iter(said), None)
        old = self._readable(znodes.CLUSTER_ID, znodes.decode_cluster_id)
        if mine and old and mine != old:
            raise ConfigError(f"the registry is that of cluster {old}, the log directories belong to {mine}")
        if old is None and znodes.CLUSTER_ID in self._nodes:
            self.plan.nodes[znodes.CLUSTER_ID] = b""  # replaced below: it cannot be read
        return mine or old or znodes.uuid_text(znodes.new_uuid())

    @cached_property
    def _deleted_ids(self) -> set[bytes]:
        deleted = self._readable(deleted_topics.PATH, deleted_topics.DeletedTopics.decode)
        return set() if deleted is None else {znodes.uuid_bytes(each) for each in deleted.deleted_ms}

    def _check_names(self, found: Mapping[str, Mapping[BrokerId, Mapping[int, HostLog]]]) -> None:
        owners: dict[bytes, str] = {}
        for name, hosts in found.items():
            for topic_id in {log.topic_id for logs in hosts.values() for log in logs.values()} - {None}:
                assert topic_id is not None
                other = owners.setdefault(topic_id, name)
                if other != name:
                    raise ConfigError(
                        f"logs of the topics {other} and {name} have the same topic id, {znodes.uuid_text(topic_id)}: "
                        "one is a copy; move it away"
                    )

    # Topics ---------------------------------------------------------------------------------------------------------

    def _put(self, path: str, data: bytes, *, keep: bool = False) -> None:
        """Have ``path`` hold ``data``; with ``keep`` only if there is no such node, or it cannot be read."""
        if path not in self._nodes or path in self.plan.nodes or (not keep and self._nodes[path] != data):
            self.plan.nodes[path] = data

    def _plan_topic(self, name: str, found: Mapping[BrokerId, Mapping[int, HostLog]]) -> None:
        old = self._old.get(name)
        ids: dict[bytes, list[BrokerId]] = defaultdict(list)
        for broker, logs in found.items():
            for topic_id in {log.topic_id for log in logs.values()} - {None}:
                assert topic_id is not None
                ids[topic_id].append(broker)
        named = self._id_of(name, old, ids)
        if named is None and ids:
            self._leave_over(name, found, None)
            return
        topic_id = named or (old.topic_id if old is not None else znodes.new_uuid())
        # Old tools write topic nodes without an id.
        is_known = old is not None and old.topic_id in (topic_id, znodes.NO_TOPIC_ID)
        self._leave_over(name, found, topic_id)
        counting: dict[int, dict[BrokerId, HostLog]] = defaultdict(dict)
        for broker, logs in found.items():
            for number, log in logs.items():
                if log.topic_id in (None, topic_id):
                    counting[number][broker] = log
        kept = dict(old.partitions) if old is not None and is_known else {}
        known = self._known.get((name, topic_id))
        expected = kept if known is None else {**known.replicas, **kept}
        holders = sorted({broker for logs in counting.values() for broker in logs})
        replicas = {}
        for number in range(max([*counting, *expected]) + 1):
            logs_here = counting.get(number, {})
            replicas[number] = expected.get(number, ())
            if not replicas[number] or (logs_here and not logs_here.keys() & set(replicas[number])):
                replicas[number] = tuple(_by_rank(logs_here)) or (holders[number % len(holders)],)
        topic = TopicAssignment(topic_id, replicas)
        if old is not None and is_known:
            topic = TopicAssignment(topic_id, replicas, old.adding, old.removing, old.unknown)
        if old is None or old.topic_id != topic_id or replicas != kept:
            self._put(znodes.topic_path(name), topic.encode())
        config, path = None, znodes.topic_config_path(name)
        if not is_known or self._readable(path, partial(znodes.decode_config, path)) is None:
            config = self._config_of(name) if known is None else known.config
            self._put(path, znodes.encode_config(config))
        epochs, best = self._plan_states(name, topic, counting, is_known=is_known)
        without_log = tuple(number for number in replicas if not counting.get(number))
        is_lost = config is not None and known is None
        self.plan.topics.append(RecoveredTopic(name, topic_id, epochs, best, without_log, config, is_lost))

    def _id_of(self, name: str, old: TopicAssignment | None, ids: Mapping[bytes, list[BrokerId]]) -> bytes | None:
        """Return the id of the topic that the logs are of, None when they name none that counts."""
        if old is not None and old.topic_id != znodes.NO_TOPIC_ID and self._is_current and ids:
            return old.topic_id if old.topic_id in ids else None
        living = [each for each in ids if each not in self._deleted_ids]
        if len(living) > 1:
            each = ", ".join(f"broker {brokers[0]}: {znodes.uuid_text(topic_id)}" for topic_id, brokers in ids.items())
            raise ConfigError(
                f"logs of topic {name} have different topic ids ({each}): the topic was deleted and made again while a "
                "broker was down; move the logs of the older one away, and read that broker again"
            )
        return living[0] if living else None

    def _leave_over(self, name: str, found: Mapping[BrokerId, Mapping[int, HostLog]], topic_id: bytes | None) -> None:
        for broker, logs in sorted(found.items()):
            for number, log in sorted(logs.items()):
                if topic_id is None or log.topic_id not in (None, topic_id):
                    self.plan.left_over.append((broker, TopicPartition(name, number), _id_text(log.topic_id)))

    def _config_of(self, name: str) -> Mapping[str, str]:
        """Return settings under which nothing is removed that the lost ones may have kept."""
        if name == CONSUMER_OFFSETS_TOPIC:
            return self._offsets_config
        if any(name in host.compacted for host in self._hosts.values()):
            return {"cleanup.policy": "compact"}
        return _KEEP_ALL

    def _plan_states(
        self, name: str, topic: TopicAssignment, found: Mapping[int, Mapping[BrokerId, HostLog]], *, is_known: bool
    ) -> tuple[dict[int, int], dict[int, BrokerId]]:
        self._put(znodes.partitions_path(name), b"", keep=True)
        epochs, best = {}, {}
        for number, replicas in topic.partitions.items():
            path, logs = znodes.state_path(name, number), found.get(number, {})
            known = self._known.get((name, topic.topic_id))
            said = set(replicas) if is_known else set()
            if known is not None:
                said.update(known.replicas.get(number, ()))
            # The replicas of a topic that nobody knows may be anywhere.
            self._note_unread(TopicPartition(name, number), said if is_known or known is not None else self._away)
            state = self._readable(path, partial(LeaderAndIsr.decode, name, number)) if path in self._nodes else None
            in_logs = max((log.highest_epoch for log in logs.values()), default=-1)
            self._put(znodes.partition_path(name, number), b"", keep=True)
            before = -1 if state is None else state.leader_epoch
            if is_known and state is not None and before >= in_logs and self._is_current:
                epochs[number] = before
                continue
            best[number] = self._best(replicas, logs)
            self._tell_of_loss(TopicPartition(name, number), best[number], replicas, logs)
            epochs[number] = min(max(in_logs, before) + _SKIPPED_EPOCHS, znodes.MAX_EPOCH)
            has_all = all(each in logs for each in replicas)
            self._put(path, self._state(best[number], epochs[number], state, has_all=has_all).encode())
        return epochs, best

    def _plan_unread_topics(self, found: Collection[str]) -> None:
        """Note topics that a broker knew, and of which only brokers have logs that were not read."""
        for (name, topic_id), known in self._known.items():
            if name not in found and name not in self._old and topic_id not in self._deleted_ids:
                for number, replicas in known.replicas.items():
                    self._note_unread(TopicPartition(name, number), replicas)

    def _note_unread(self, key: TopicPartition, replicas: Collection[BrokerId]) -> None:
        unread = set(replicas) - self._hosts.keys() - self._without
        if unread:
            self.plan.unread[key] = tuple(sorted(unread))

    def _best(self, replicas: Sequence[BrokerId], logs: Mapping[BrokerId, HostLog]) -> BrokerId:
        ranked = _by_rank({each: logs[each] for each in replicas if each in logs})
        # Where nobody has a log, one begins with the first replica that was read.
        return next(iter([*ranked, *(each for each in replicas if each in self._hosts)]), replicas[0])

    def _tell_of_loss(
        self, key: TopicPartition, best: BrokerId, replicas: Sequence[BrokerId], logs: Mapping[BrokerId, HostLog]
    ) -> None:
        end = logs[best].end_offset if best in logs else 0
        committed = max((log.high_watermark for log in logs.values()), default=0)
        if committed > end:
            self.plan.problems.append(
                f"no log of {key} has offsets {end} to {committed - 1}, which were acknowledged: a broker has noted "
                f"the high watermark {committed}"
            )
        nameless = [broker for broker, log in sorted(logs.items()) if log.topic_id is None and log.end_offset]
        if nameless and len(replicas) > 1:
            named = " and ".join(map(str, nameless))
            self.plan.problems.append(
                f"the log of {key} of broker {named} names no topic id: when the broker starts it sets the log aside "
                "(-stray); put its partition.metadata back, and read the broker again"
            )
        if best in logs and logs[best].damaged:
            self.plan.problems.append(f"the best log of {key}, that of broker {best}, is damaged")

    def _state(self, best: BrokerId, epoch: int, old: LeaderAndIsr | None, *, has_all: bool) -> LeaderAndIsr:
        """``has_all``: the logs of all replicas were read."""
        host = self._hosts.get(best)
        incarnation = UNKNOWN_INCARNATION if host is None else host.incarnation
        return LeaderAndIsr(
            NO_LEADER,
            LeaderEpoch(epoch),
            (best,),
            ControllerEpoch(0) if old is None else old.controller_epoch,
            {} if incarnation == UNKNOWN_INCARNATION else {best: incarnation},
            unclean_epoch=epoch if not has_all else NO_LEADER_EPOCH if old is None else old.unclean_epoch,
        )

    # Numbers --------------------------------------------------------------------------------------------------------

    def _plan_producer_ids(self) -> None:
        """Have producer ids go on above what was given out."""
        highest = max(host.producer_id for host in self._hosts.values())
        block = self._readable(PRODUCER_ID_BLOCK, ProducerIdBlock.decode)
        if block is not None and block.last > 2**63 - 1 - 2 * _SKIPPED_PRODUCER_IDS:
            self.plan.problems.append(
                f"registry node {PRODUCER_ID_BLOCK} leaves no producer ids; those in the logs count"
            )
            block = None
        given = highest if block is None else block.last
        if block is None or not self._is_current or block.last < highest:
            # To the end of a block, as brokers count.
            size = PRODUCER_ID_BLOCK_SIZE
            given = max(given, highest)
            given += _SKIPPED_PRODUCER_IDS if given >= 0 or znodes.CLUSTER_ID in self._nodes else 0
            if given >= 0:
                given = (given // size + 1) * size - 1
                taken = ProducerIdBlock(min(self._hosts), given - size + 1, given)
                self._put(PRODUCER_ID_BLOCK, taken.encode())
        self.plan.next_producer_id = given + 1

    def _plan_controller_epoch(self) -> None:
        """Make a controller epoch that cannot be read; a missing one begins with the first controller."""
        path = znodes.CONTROLLER_EPOCH
        if path in self._nodes and self._readable(path, znodes.decode_controller_epoch) is None:
            highest = 0
            for node, data in self._nodes.items():
                if node.startswith(f"{znodes.TOPICS}/") and node.endswith("/state"):
                    try:
                        epoch = LeaderAndIsr.decode("", 0, data).controller_epoch
                    except MalformedNode:
                        continue
                    highest = max(highest, min(epoch, znodes.MAX_EPOCH - 1))
            self._put(path, znodes.encode_controller_epoch(highest))


class _Read(Protocol):
    def __call__(self, path: str, decode: Callable[[bytes], T], /) -> T | None: ...


def _topics_of(nodes: Mapping[str, bytes], read: _Read) -> dict[str, TopicAssignment]:
    prefix = f"{znodes.TOPICS}/"
    names = [path.removeprefix(prefix) for path in nodes if path.startswith(prefix)]
    found = {name: read(f"{prefix}{name}", partial(TopicAssignment.decode, name)) for name in names if "/" not in name}
    return {name: topic for name, topic in found.items() if topic is not None}


def _replicas_in(topics: Mapping[str, TopicAssignment]) -> set[BrokerId]:
    return {broker for topic in topics.values() for replicas in topic.partitions.values() for broker in replicas}


def _decoded(data: bytes, decode: Callable[[bytes], T]) -> T | None:
    try:
        return decode(data)
    except MalformedNode:
        return None


def _by_rank(logs: Mapping[BrokerId, HostLog]) -> list[BrokerId]:
    """Return the brokers, that of the best log first; of equal ones in the order given.

    A log that names no topic id comes last: brokers do not take it for the topic's.
    """
    return sorted(logs, key=lambda broker: (logs[broker].topic_id is not None, *logs[broker].rank), reverse=True)


def _id_text(topic_id: bytes | None) -> str:
    return "" if topic_id is None else znodes.uuid_text(topic_id)
