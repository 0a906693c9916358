"""An immutable snapshot of the cluster as the registry has it, and what changed between two of them.

``watcher.ClusterWatcher`` makes the snapshots, ``cluster_view.ClusterView`` keeps the last one. Unchanged parts are
shared between snapshots, so that comparing two costs what changed and not what exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from spark_kafkalite.model import (
    UNKNOWN_INCARNATION,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Incarnation,
    LeaderEpoch,
    TopicPartition,
)
from spark_kafkalite.registry.accepted_damage import AcceptedDamage
from spark_kafkalite.registry.node_json import no_fields
from spark_kafkalite.registry.store import Stat
from spark_kafkalite.registry.znodes import (
    INNER_WIRE_VERSION,
    MAX_EPOCH,
    NO_LEADER,
    NO_TOPIC_ID,
    BrokerRegistration,
    LeaderAndIsr,
    uuid_text,
)
from spark_kafkalite.slices import Work, run_whole

V = TypeVar("V")

NO_EPOCH: Final = LeaderEpoch(-1)
NO_CONTROLLER_EPOCH: Final = ControllerEpoch(-1)
# The order (PartitionState.order) of a partition's state before any is known.
NO_ORDER: Final = (-1, -1)


_NO_INCARNATIONS: Final[Mapping[BrokerId, Incarnation]] = MappingProxyType({})


def _no_incarnations() -> Mapping[BrokerId, Incarnation]:
    return _NO_INCARNATIONS


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker. ``epoch`` is the creation zxid of its registration: another one is another registration, perhaps
    of the same ``incarnation``.

    ``listeners`` has the advertised address of each listener by its name; ``steady`` the earlier incarnations whose
    logs it has proven to have (rule R12). ``software_version`` is empty where the registration does not name it.
    """

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    epoch: BrokerEpoch
    listeners: Mapping[str, tuple[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    inner_listener: str = ""
    inner_wire_version: int = INNER_WIRE_VERSION
    incarnation: Incarnation = UNKNOWN_INCARNATION
    steady: tuple[Incarnation, ...] = ()
    software_version: str = ""
    # The security protocol of the inner listener.
    inner_protocol: str = "PLAINTEXT"

    @classmethod
    def of(cls, registration: BrokerRegistration, epoch: BrokerEpoch) -> BrokerInfo:
        """Return the broker of a registration, with the zxid that created its node."""
        return cls(
            registration.broker_id,
            registration.host,
            registration.port,
            registration.rack,
            epoch,
            MappingProxyType(registration.addresses()),
            registration.inner_listener,
            registration.inner_wire_version,
            registration.incarnation,
            registration.steady,
            registration.software_version,
            registration.inner_protocol,
        )

    @property
    def inner_address(self) -> tuple[str, int]:
        """Host and port where other brokers reach it."""
        return self.listeners.get(self.inner_listener, (self.host, self.port))

    def has_log_of(self, incarnation: Incarnation) -> bool:
        """Whether this broker's logs have everything that this incarnation of it had: rules R11 and R12."""
        return incarnation != UNKNOWN_INCARNATION and (incarnation == self.incarnation or incarnation in self.steady)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition. ``version``, ``modified_zxid`` and ``created_zxid`` are the state node's, all -1 while it does not
    exist; ``replicas_zxid`` is the topic node's last change, which has the replicas.

    Two nodes describe a partition, and are read apart: see :meth:`merged_with`.

    ``unreadable``: the node cannot be read. The last leader and its epoch are then not known, so no replica may lead.
    ``incarnations`` are those of the ISR's members, ``eligible`` those of the other replicas that may lead; see
    ``znodes.LeaderAndIsr``.

    While a reassignment moves the partition, ``replicas`` has both those that it had and those that come (``adding``);
    ``removing`` are those that go. ``replicas`` has no broker of ``removed``, which the state names (rule V5);
    ``listed`` is what the topic node has, where that is more, and empty otherwise.
    """

    replicas: tuple[BrokerId, ...]
    leader: BrokerId = NO_LEADER
    leader_epoch: LeaderEpoch = NO_EPOCH
    isr: tuple[BrokerId, ...] = ()
    controller_epoch: ControllerEpoch = NO_CONTROLLER_EPOCH
    version: int = -1
    modified_zxid: int = -1
    unreadable: bool = False
    incarnations: Mapping[BrokerId, Incarnation] = field(default_factory=_no_incarnations)
    eligible: Mapping[BrokerId, Incarnation] = field(default_factory=_no_incarnations)
    created_zxid: int = -1
    # Not compared: a topic node that gets more partitions is no news of those that it had.
    replicas_zxid: int = field(default=-1, compare=False)
    # What the state node held before somebody deleted it, as far as this session has seen it.
    former: LeaderAndIsr | None = None
    # The state node's fields of a newer version: who writes the node writes them again.
    unknown: Mapping[str, Any] = field(default_factory=no_fields)
    accepted_damage: AcceptedDamage | None = None
    unclean_epoch: int = -1
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    removed: tuple[BrokerId, ...] = ()
    listed: tuple[BrokerId, ...] = ()

    @classmethod
    def of(
        cls,
        listed: tuple[BrokerId, ...],
        node: LeaderAndIsr,
        stat: Stat,
        replicas_zxid: int = -1,
        adding: tuple[BrokerId, ...] = (),
        removing: tuple[BrokerId, ...] = (),
    ) -> PartitionState:
        """Return the partition from the content of its state node; the rest is what the topic node has of it."""
        replicas = _not_removed(listed, node.removed)
        return cls(
            replicas,
            node.leader,
            node.leader_epoch,
            node.isr,
            node.controller_epoch,
            stat.version,
            stat.mzxid,
            incarnations=node.incarnations,
            eligible=node.eligible,
            created_zxid=stat.czxid,
            replicas_zxid=replicas_zxid,
            unknown=node.unknown,
            accepted_damage=node.accepted_damage,
            unclean_epoch=node.unclean_epoch,
            adding=adding,
            removing=removing,
            removed=node.removed,
            listed=listed if replicas is not listed else (),
        )

    @classmethod
    def without_node(
        cls,
        replicas: tuple[BrokerId, ...],
        replicas_zxid: int,
        former: LeaderAndIsr | None = None,
        adding: tuple[BrokerId, ...] = (),
        removing: tuple[BrokerId, ...] = (),
    ) -> PartitionState:
        """Return a partition that has no state node: not yet, or not any more, where ``former`` is what it held."""
        epoch = NO_EPOCH if former is None else former.leader_epoch
        return cls(
            replicas,
            leader_epoch=epoch,
            replicas_zxid=replicas_zxid,
            former=former,
            adding=adding,
            removing=removing,
        )

    @property
    def order(self) -> tuple[int, int]:
        """What orders the states of a partition: the larger one is newer. Versions begin at 0 again with each node."""
        return self.created_zxid, self.version

    def merged_with(self, news: PartitionState) -> PartitionState:
        """Return what is known after ``news`` of the same topic have come: of each half the newer one (rule R2).

        The replicas are newer by the topic node's zxid, all else by :attr:`order`. Neither half goes back, whatever the
        other one does: a leader that has written a state does not forget it because the topic node has changed. This
        very object where ``news`` have nothing newer. Made of the same news in any order it is the same.
        """
        if news.replicas_zxid >= self.replicas_zxid:
            if (news.created_zxid, news.version) > (self.created_zxid, self.version):
                return news
            if news.replicas_zxid == self.replicas_zxid:
                return self
            return self.with_replicas_of(news)
        if (news.created_zxid, news.version) > (self.created_zxid, self.version):
            return news.with_replicas_of(self)
        return self

    def with_replicas_of(self, other: PartitionState) -> PartitionState:
        """Return this state with the replicas, and their zxid, of another one."""
        listed = other.all_listed
        replicas = _not_removed(listed, self.removed)
        return replace(
            self,
            replicas=replicas,
            replicas_zxid=other.replicas_zxid,
            adding=other.adding,
            removing=other.removing,
            listed=listed if replicas is not listed else (),
        )

    @property
    def all_listed(self) -> tuple[BrokerId, ...]:
        """The replicas as the topic node has them, those that the state has removed as well."""
        return self.listed or self.replicas

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment of the partition is in progress."""
        return bool(self.adding or self.removing)

    @property
    def settled_count(self) -> int:
        """How many replicas there are besides those that a reassignment is adding: ``min.insync.replicas`` counts these
        alone (rule V7), because an added replica takes as long to be in sync as the copy takes."""
        if not self.adding:
            return len(self.replicas)
        return sum(each not in self.adding for each in self.replicas)

    @property
    def node(self) -> LeaderAndIsr:
        """The content of the state node where this is the state."""
        return LeaderAndIsr(
            self.leader,
            self.leader_epoch,
            self.isr,
            self.controller_epoch,
            self.incarnations,
            self.eligible,
            self.unknown,
            self.accepted_damage,
            self.removed,
            self.unclean_epoch,
        )

    @property
    def epochs_are_used_up(self) -> bool:
        """Whether no election can follow, because the leader epoch is the last one; only damage comes that far."""
        return self.leader_epoch >= MAX_EPOCH

    @property
    def has_state(self) -> bool:
        """Whether the state node exists; without it the partition is new, or the node was deleted."""
        return self.version >= 0

    @property
    def names_nobody(self) -> bool:
        """Whether the state does not name the replicas that have the committed records.

        The controller makes such a state where there is none. Brokers report their logs for it. The reports decide
        which one leads, under which leader epoch (``recovery``).
        """
        return (
            self.has_state and not self.unreadable and self.leader == NO_LEADER and not self.isr and not self.eligible
        )

    def is_member(self, broker: BrokerInfo) -> bool:
        """Whether this run of the broker is in sync, by the state: it has the log of the member that the state names
        (rules R11, R12)."""
        named = self.incarnations.get(broker.broker_id, UNKNOWN_INCARNATION)
        return broker.broker_id in self.isr and broker.has_log_of(named)

    def is_eligible(self, broker: BrokerInfo) -> bool:
        """Whether this run of the broker has the log of the eligible replica that the state names (rule R16)."""
        return broker.has_log_of(self.eligible.get(broker.broker_id, UNKNOWN_INCARNATION))

    def is_led_by(self, broker: BrokerInfo) -> bool:
        """Whether this run of the broker leads: the state names it, as what it is (rule R1).

        A state that means an earlier run must not be acted upon: the controller elects again under a higher epoch, even
        where the broker has that run's logs (R11, R12). Their ends may be gone all the same: a file that is cut while
        the broker is down looks like one whose last append was not finished. Under the same epoch other records would
        take those offsets, and a follower that has the first ones would not notice. So does a state that names no
        incarnations, or a broker that is no replica any more. An only replica goes on under its epoch.
        """
        if self.leader != broker.broker_id or self.leader not in self.replicas:
            return False
        named = self.incarnations.get(broker.broker_id, UNKNOWN_INCARNATION)
        return broker.has_log_of(named) and (named == broker.incarnation or len(self.replicas) == 1)


def _not_removed(listed: tuple[BrokerId, ...], removed: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    """Return the replicas of a topic node's list; all of them where a list that was written by hand has no other."""
    if not removed:
        return listed
    left = tuple(each for each in listed if each not in removed)
    return left if left and len(left) < len(listed) else listed


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic. ``partitions`` is ordered by number; ``config`` holds the topic's own settings, as text. ``moving``
    has the numbers of the partitions that are being reassigned, by the topic's node."""

    topic_id: bytes
    partitions: Mapping[int, PartitionState]
    config: Mapping[str, str]
    moving: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything a broker knows of its cluster. ``controller_id`` is -1 while there is none.

    ``brokers`` are in the order of their numbers, whichever was seen first.
    ``broker_configs`` holds the dynamic settings, as text, of each broker number and of znodes.DEFAULT_ENTITY.
    ``unreadable_topics`` exist, but what their nodes hold is not known: they are not in ``topics``.
    ``topics_without_id`` are those of ``topics`` whose nodes name no id: they have the one that was known before, or
    NO_TOPIC_ID.
    ``deleted_topic_ids`` are those that the controller has deleted lately, as text (``deleted_topics``).
    """

    cluster_id: str = ""
    brokers: Mapping[int, BrokerInfo] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicState] = field(default_factory=lambda: MappingProxyType({}))
    controller_id: BrokerId = NO_LEADER
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    unreadable_topics: frozenset[str] = frozenset()
    deleted_topic_ids: Set[str] = frozenset()
    topics_without_id: frozenset[str] = frozenset()
    # Made by the first look-up by id: a request may ask for thousands of ids, and a search for each would be quadratic.
    _names: dict[bytes, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def partition(self, topic_partition: TopicPartition) -> PartitionState | None:
        """Return a partition's state, None when there is no such partition."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def has_deleted(self, topic_id: bytes | None) -> bool:
        """Return whether the controller has deleted the topic of this id; False for a log that names no id."""
        return topic_id is not None and uuid_text(topic_id) in self.deleted_topic_ids

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic of this id."""
        names = self._names
        if not names:
            names.update((topic.topic_id, name) for name, topic in self.topics.items())
        return names.get(topic_id)


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """What differs between two snapshots.

    A topic deleted and made again under its name is both in ``deleted_topics`` (with its old id) and in ``new_topics``,
    and all its partitions are in ``changed_partitions``. One that was known and cannot be read any more, or names no id
    any more, is in ``unreadable_topics``: it may be another topic by now. A broker that came back as another
    incarnation is in ``bounced_brokers`` only.
    """

    new_brokers: tuple[int, ...]
    gone_brokers: tuple[int, ...]
    bounced_brokers: tuple[int, ...]
    new_topics: tuple[str, ...]
    deleted_topics: tuple[tuple[str, bytes], ...]
    unreadable_topics: tuple[str, ...]
    changed_configs: tuple[str, ...]
    changed_partitions: tuple[TopicPartition, ...]


# Partitions that a comparison looks at in one piece.
_COMPARED_AT_ONCE: Final = 1000


def diff(old: ClusterState, new: ClusterState) -> ClusterChange:
    """Return what happened between ``old`` and ``new``."""
    return run_whole(diff_work(old, new, dict.fromkeys(_differing(old.topics, new.topics))))


def diff_work(
    old: ClusterState, new: ClusterState, topics: Mapping[str, Collection[int] | None]
) -> Work[ClusterChange]:
    """As :func:`diff`, in slices, where it is known that no other topics than these have changed, and of each, where it
    is still the same topic, no other partitions (None: any may have)."""
    new_topics: list[str] = []
    deleted_topics: list[tuple[str, bytes]] = []
    unreadable_topics: list[str] = []
    changed_configs: list[str] = []
    changed_partitions: list[TopicPartition] = []
    for name in sorted(topics):
        yield None
        before, after = old.topics.get(name), new.topics.get(name)
        if before is not None and after is None and name in new.unreadable_topics:
            unreadable_topics.append(name)
        elif before is not None and after is not None and after.topic_id == NO_TOPIC_ID != before.topic_id:
            # Another session has read it when its node named an id.
            unreadable_topics.append(name)
            before = None
        elif before is not None and (after is None or before.topic_id != after.topic_id):
            deleted_topics.append((name, before.topic_id))
            before = None
        if after is None:
            continue
        numbers: Iterable[int] = after.partitions
        if before is None:
            new_topics.append(name)
        else:
            if before.config != after.config:
                changed_configs.append(name)
            may_differ = topics[name]
            numbers = yield from _changed_numbers(
                before.partitions, after.partitions, after.partitions if may_differ is None else may_differ
            )
        in_order = sorted(numbers)
        for first in range(0, len(in_order), _COMPARED_AT_ONCE):
            yield None
            changed_partitions += [TopicPartition(name, n) for n in in_order[first : first + _COMPARED_AT_ONCE]]
    brokers = _differing(old.brokers, new.brokers)
    return ClusterChange(
        new_brokers=tuple(sorted(broker for broker in brokers if broker not in old.brokers)),
        gone_brokers=tuple(sorted(broker for broker in brokers if broker not in new.brokers)),
        bounced_brokers=tuple(
            sorted(
                broker
                for broker in brokers
                if broker in old.brokers
                and broker in new.brokers
                and old.brokers[broker].epoch != new.brokers[broker].epoch
            )
        ),
        new_topics=tuple(new_topics),
        deleted_topics=tuple(deleted_topics),
        unreadable_topics=tuple(unreadable_topics),
        changed_configs=tuple(changed_configs),
        changed_partitions=tuple(changed_partitions),
    )


def _changed_numbers(
    old: Mapping[int, PartitionState], new: Mapping[int, PartitionState], numbers: Iterable[int]
) -> Work[list[int]]:
    """Return which of these partitions are in ``new`` and differ from ``old``."""
    changed: list[int] = []
    if old is new:
        return changed
    for index, number in enumerate(numbers, 1):
        after = new.get(number)
        before = old.get(number)
        if after is not None and before is not after and before != after:
            changed.append(number)
        if index % _COMPARED_AT_ONCE == 0:
            yield None
    return changed


K = TypeVar("K")


def _differing(old: Mapping[K, V], new: Mapping[K, V]) -> list[K]:
    """Return the keys whose values differ or that only one side has; shared values cost an identity check."""
    if old is new:
        return []
    changed = [key for key, value in new.items() if (other := old.get(key)) is not value and other != value]
    changed += [key for key in old if key not in new]
    return changed
