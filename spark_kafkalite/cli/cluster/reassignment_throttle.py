"""The throttle of a reassignment (KIP-73): set before it begins and removed after it, as Kafka's own tool does.

The brokers get a rate for each direction. The topics name the replicas that it holds for: at the leader's side the
replicas that there are, at the follower's side those that come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafkalite.cli.cluster.reassignment_room import shown_bytes
from spark_kafkalite.cli.output import said
from spark_kafkalite.errors import InvalidConfig, KafkaliteError
from spark_kafkalite.model import UNLIMITED_RATE, TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.reassignments import Reassignment

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
# Where a setting comes from that was altered for one broker alone.
_OF_BROKER: Final = "dynamic broker"
# In a list: all replicas of the topic.
_ALL: Final = "*"
_ASKED_MS: Final = 5_000


class Throttled(NamedTuple):
    """What is throttled: of each topic the two lists of ``partition:broker``, and the brokers that get the rates."""

    lists: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    brokers: frozenset[int]


def throttled(
    plan: Mapping[TopicPartition, Sequence[int]], sources: Mapping[TopicPartition, Sequence[int]]
) -> Throttled:
    """Return what is throttled while a plan is executed. ``sources`` are the replicas that may have all records."""
    leaders: defaultdict[str, list[str]] = defaultdict(list)
    followers: defaultdict[str, list[str]] = defaultdict(list)
    brokers: set[int] = set()
    for key in sorted(plan):
        coming = [each for each in plan[key] if each not in sources[key]]
        if not coming:
            continue
        leaders[key.topic] += (f"{key.partition}:{each}" for each in sources[key])
        followers[key.topic] += (f"{key.partition}:{each}" for each in coming)
        brokers.update(sources[key], coming)
    lists = {topic: (tuple(leaders[topic]), tuple(followers[topic])) for topic in followers}
    return Throttled(lists, frozenset(brokers))


def list_value(replicas: Sequence[str]) -> str:
    """Return the setting that names throttled replicas: all of the topic's, if the protocol has no room for the list.

    Kafka's own tool fails where the list is too long.
    """
    from spark_kafkalite.wire.primitives import MAX_STRING_BYTES

    value = ",".join(replicas)
    return value if len(value) <= MAX_STRING_BYTES else _ALL


def sources_of(
    admin: Admin, keys: Collection[TopicPartition], moving: Mapping[TopicPartition, Reassignment]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas of partitions without those that a reassignment in progress is adding."""
    infos: Mapping[str, Any] = admin.describe_topics({key.topic for key in keys})
    found = {}
    for name, info in infos.items():
        for each in info.partitions:
            key = TopicPartition(name, each.partition)
            if key in keys:
                found[key] = moving[key].origin if key in moving else tuple(each.replicas)
    return found


def set_throttle(admin: Admin, plan: Mapping[TopicPartition, Sequence[int]], rate: int) -> None:
    """Have the reassignments of a plan copy at most ``rate`` bytes a second to each broker, and from each.

    A topic's lists keep what they name: a command that runs at the same time may have throttled a plan that has not
    begun yet. They also name the partitions of these topics that an earlier plan is moving, without a throttle until
    now. Kafka's tool replaces the lists. Source: org.apache.kafka.tools.reassign.ReassignPartitionsCommand
    (calculateProposedMoveMap, modifyTopicThrottles).
    """
    from spark_kafkalite.client.admin.configs import ConfigChange

    topics = {key.topic for key in plan}
    moving = {key: each for key, each in admin.list_partition_reassignments().items() if key.topic in topics}
    whole = {**{key: each.targets for key, each in moving.items()}, **plan}
    found = throttled(whole, sources_of(admin, whole, moving))
    changes = {}
    for topic, lists in found.lists.items():
        values = [list_value(each) for each in lists]
        if _ALL in values:
            _throttle_all(admin, topic)
        else:
            changes[topic] = [ConfigChange(name, "append", value) for name, value in zip(LISTS, values, strict=True)]
    try:
        admin.alter_topic_settings(changes)
    except InvalidConfig:
        # A list names all replicas already, or has no room for more. What was appended is not appended twice.
        for topic, change in changes.items():
            try:
                admin.alter_topic_settings({topic: change})
            except InvalidConfig:
                _throttle_all(admin, topic)
    # After the lists: while there are any, no other command removes the rates.
    live = {node.node_id for node in admin.describe_cluster().brokers}
    for broker in sorted(found.brokers & live):
        admin.incremental_alter_configs([ConfigChange(name, "set", str(rate)) for name in RATES], broker_id=broker)
    for broker in sorted(found.brokers - live):
        said(f"broker {broker} is not live and gets no throttle; give the same command again when it is back")


def _throttle_all(admin: Admin, topic: str) -> None:
    from spark_kafkalite.client.admin.configs import ConfigChange

    said(f"the throttle holds for all replicas of topic {topic}: its lists have no room for each of them, or name all")
    admin.alter_topic_settings({topic: [ConfigChange(name, "set", _ALL) for name in LISTS]})


def rates_of(admin: Admin, brokers: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return the rates of brokers that have any, as leader and as follower; of those that do not answer, none."""
    rates: dict[int, tuple[int, int]] = {}
    for broker in sorted(brokers):
        with suppress(KafkaliteError, ValueError):
            entries = admin.describe_configs(broker_id=broker, timeout_ms=_ASKED_MS)
            leads, follows = (
                int(entries[name].value or UNLIMITED_RATE) if name in entries else UNLIMITED_RATE for name in RATES
            )
            if min(leads, follows) < UNLIMITED_RATE:
                rates[broker] = leads, follows
    return rates


def tell_throttle_from_before(
    admin: Admin, plan: Mapping[TopicPartition, Sequence[int]], moving: Mapping[TopicPartition, Reassignment]
) -> None:
    """Print which rates hold for a plan that sets none, and how to remove them. Kafka's tool prints nothing."""
    found = throttled(plan, sources_of(admin, plan, moving))
    with suppress(KafkaliteError):
        listed = {
            topic: tuple(frozenset(_entries(settings.get(name))) for name in LISTS)
            for topic, settings in admin.describe_topic_settings(found.lists, LISTS).items()
        }
        rates, topics = held(found, listed, rates_of(admin, found.brokers) if any(map(any, listed.values())) else {})
        if rates:
            shown = ", ".join(f"broker {broker} {shown_bytes(rate)}/s" for broker, rate in sorted(rates.items()))
            said(
                f"a throttle from before holds for this plan: {shown}; give --throttle for another rate, or remove it "
                f"from topic {', '.join(topics)}: kafkalite configs alter --topic {topics[0]} --delete-config "
                f"{','.join(LISTS)}"
            )


def _entries(setting: Any) -> Sequence[str]:
    return setting.value.split(",") if setting is not None and setting.value else ()


def held(
    found: Throttled, listed: Mapping[str, Sequence[Collection[str]]], rates: Mapping[int, tuple[int, int]]
) -> tuple[dict[int, int], list[str]]:
    """Return the lowest rate of each broker that holds for what a plan would throttle, and the topics concerned.
    ``listed`` has the lists of topics as they are."""
    held: dict[int, int] = {}
    topics = set()
    for topic, wanted in found.lists.items():
        for role, (replicas, names) in enumerate(zip(wanted, listed.get(topic, ((), ())), strict=True)):
            for replica in replicas:
                broker = int(replica.partition(":")[2])
                rate = rates.get(broker, (UNLIMITED_RATE, UNLIMITED_RATE))[role]
                if rate < UNLIMITED_RATE and (_ALL in names or replica in names):
                    held[broker] = min(rate, held.get(broker, rate))
                    topics.add(topic)
    return held, sorted(topics)


def remove_throttles(admin: Admin, plan: Collection[TopicPartition] | None) -> bool:
    """Remove the throttles of a plan's partitions that do not move (None: of all such partitions), and the rates of all
    brokers when nothing moves.

    What the lists name of other partitions stays: another command may have throttled a plan that has not begun yet. So
    do the rates then. Kafka's tool removes the lists of whole topics, and the rates, as soon as nothing moves. Returns
    whether all that was to be removed is. Source: org.apache.kafka.tools.reassign.ReassignPartitionsCommand
    (verifyAssignment, clearAllThrottles).
    """
    from spark_kafkalite.client.admin.configs import ConfigChange

    moving = _numbers_by_topic(admin.list_partition_reassignments())
    ours = None if plan is None else _numbers_by_topic(plan)
    topics = set(admin.describe_topics()) if ours is None else set(ours)
    changes, parts = {}, set()
    for topic, settings in admin.describe_topic_settings(sorted(topics), LISTS).items():
        changed = []
        for name in LISTS:
            entries = _entries(settings.get(name))
            ended = ended_entries(entries, None if ours is None else ours[topic], moving.get(topic, frozenset()))
            if ended and len(ended) == len(entries):
                changed.append(ConfigChange(name, "delete"))
            elif ended:
                parts.add(topic)
                # Not "set": another command may append to the list at this moment.
                changed.append(ConfigChange(name, "subtract", ",".join(ended)))
        if changed:
            changes[topic] = changed
    admin.alter_topic_settings(changes)
    if whole := sorted(changes.keys() - parts):
        said(f"the throttle of topic {', '.join(whole)} is removed")
    if parts:
        said(f"the throttle of topic {', '.join(sorted(parts))} is removed for the partitions of this plan")
    if moving:
        needed = "other reassignments are in progress"
    elif ours is not None and (waiting := _topics_of_waiting_plans(admin, ours)):
        needed = (
            f"topic {', '.join(waiting)} is throttled for a plan that has not begun; --verify of that plan removes it"
        )
    else:
        needed = ""
    return _remove_rates(admin, needed, had_throttle=bool(changes))


def _topics_of_waiting_plans(admin: Admin, ours: Mapping[str, Collection[str]]) -> list[str]:
    """Return the topics whose lists name replicas that are still to come, of other partitions than ``ours``."""
    infos: Mapping[str, Any] = admin.describe_topics()
    replicas = {
        (name, str(each.partition)): {str(broker) for broker in each.replicas}
        for name, info in infos.items()
        for each in info.partitions
    }
    found = []
    for topic, settings in admin.describe_topic_settings(sorted(infos), LISTS[1:]).items():
        for entry in _entries(settings.get(LISTS[1])):
            partition, _, broker = entry.strip().partition(":")
            if partition not in ours.get(topic, ()) and broker not in replicas.get((topic, partition), broker):
                found.append(topic)
                break
    return found


def _numbers_by_topic(keys: Iterable[TopicPartition]) -> dict[str, set[str]]:
    """Return the numbers of partitions by topic, as lists of throttled replicas have them."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for key in keys:
        found[key.topic].add(str(key.partition))
    return dict(found)


def ended_entries(entries: Iterable[str], ours: Collection[str] | None, moving: Collection[str]) -> list[str]:
    """Return what a topic's list of throttled replicas names of a plan that has ended, without what moves again.
    ``ours`` are the plan's partitions of the topic (None: all there are), ``moving`` those that move."""

    def has_ended(entry: str) -> bool:
        partition = entry.partition(":")[0].strip()
        if partition == _ALL:
            return not moving
        return partition not in moving and (ours is None or partition in ours)

    return [each for each in entries if has_ended(each)]


def _remove_rates(admin: Admin, needed: str, *, had_throttle: bool) -> bool:
    """Remove the rates of all brokers, unless they are ``needed``: then that is the reason, and is printed."""
    from spark_kafkalite.client.admin.configs import ConfigChange

    removed, kept, is_done = [], [], True
    for node in admin.describe_cluster().brokers:
        broker = node.node_id
        try:
            entries = admin.describe_configs(broker_id=broker)
            names = [name for name in RATES if name in entries and entries[name].source == _OF_BROKER]
            if not names:
                continue
            if needed:
                kept.append(broker)
                continue
            admin.incremental_alter_configs([ConfigChange(name, "delete") for name in names], broker_id=broker)
            removed.append(broker)
        except KafkaliteError as error:
            # One that has just gone says nothing of its rates. Without a throttled topic it mostly has none.
            if not had_throttle:
                continue
            is_done = False
            said(f"the throttle of broker {broker} could not be removed: {error}; give --verify again later")
    if removed:
        said(f"the throttle of broker {_numbers(removed)} is removed")
    if kept:
        said(f"broker {_numbers(kept)} keeps its throttle: {needed}")
    return is_done


def _numbers(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))
