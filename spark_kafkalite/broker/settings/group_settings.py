"""Declares the broker's settings of groups, committed offsets and ``__consumer_offsets``; ``config.py`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.internal_topic import InternalTopic
from spark_kafkalite.model import CONSUMER_OFFSETS_TOPIC
from spark_kafkalite.settings import Setting

OFFSET_SETTINGS: Final = (
    Setting(
        "offsets.topic.num.partitions",
        "int",
        50,
        "Partitions of __consumer_offsets, over which groups are spread. Takes effect when the topic is created, with "
        "the first group.",
        minimum=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        "int",
        1,
        "Replicas of __consumer_offsets; groups are served once that many brokers are live. Takes effect when the "
        "topic is created. With zookeeper.connect the default is 3.",
        minimum=1,
        maximum=32767,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        "int",
        100 * 1024 * 1024,
        "segment.bytes of __consumer_offsets: small segments are compacted soon, so that a start reads few bytes. "
        "Takes effect when the topic is created.",
        unit="bytes",
        minimum=14,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        "int",
        5_000,
        "How long a commit, or a group's state, may take to reach all in-sync replicas of __consumer_offsets. After it "
        "the client gets an error and may try again.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "offset.metadata.max.bytes",
        "int",
        4096,
        "Longest text that a client may commit with an offset, in characters.",
        minimum=0,
        maximum=32767,
    ),
    Setting(
        "offsets.retention.minutes",
        "int",
        10_080,
        "A group's committed offsets expire this long after the group has become empty; those of simple consumers, "
        "which no group manages, this long after their last commit.",
        unit="minutes",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        "long",
        600_000,
        "How often expired offsets, and groups without offsets, are deleted.",
        unit="ms",
        minimum=1,
    ),
)

GROUP_SETTINGS: Final = (
    Setting(
        "group.min.session.timeout.ms",
        "int",
        6_000,
        "Shortest session timeout that a member may ask for (INVALID_SESSION_TIMEOUT otherwise).",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "group.max.session.timeout.ms",
        "int",
        1_800_000,
        "Longest session timeout that a member may ask for. A crashed member is noticed after its session timeout.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        "int",
        0,
        "How long an empty group waits for more members after its first one, and again after each further one, up to "
        "their rebalance timeout. Apache Kafka waits 3000; a single broker need not.",
        unit="ms",
        minimum=0,
    ),
    Setting(
        "group.max.size",
        "int",
        2**31 - 1,
        "Most members of a group; a further one is refused with GROUP_MAX_SIZE_REACHED.",
        minimum=1,
    ),
    Setting(
        "group.max.bytes",
        "int",
        16 * 1024 * 1024,
        "Memory that the members of one group, above all their subscriptions, may take together; a member that would "
        "need more is refused with GROUP_MAX_SIZE_REACHED. A group must also fit into one record of "
        "__consumer_offsets.",
        unit="bytes",
        minimum=1024,
    ),
    Setting(
        "group.coordinator.max.bytes",
        "long",
        256 * 1024 * 1024,
        "Memory that the members of all groups may take together. A member that needs more gets that of groups which "
        "never synced, the oldest first, or which hold more than an eighth of all; where that is not enough it gets "
        "COORDINATOR_NOT_AVAILABLE, and its client tries again.",
        unit="bytes",
        minimum=1024,
    ),
)


def offsets_topic(config: Mapping[str, Any]) -> InternalTopic:
    """Return the topic that keeps groups and committed offsets, as the settings want it."""
    return InternalTopic(
        CONSUMER_OFFSETS_TOPIC,
        "group",
        config["offsets.topic.num.partitions"],
        config["offsets.topic.replication.factor"],
        config["offsets.topic.segment.bytes"],
        "offsets.topic.replication.factor",
        config["offsets.commit.timeout.ms"],
        "offsets.commit.timeout.ms",
    )


def group_limits(config: Mapping[str, Any]) -> GroupLimits:
    """Return what a group may be, as the settings want it."""
    return GroupLimits(
        min_session_timeout_ms=config["group.min.session.timeout.ms"],
        max_session_timeout_ms=config["group.max.session.timeout.ms"],
        max_size=config["group.max.size"],
        initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        max_bytes=config["group.max.bytes"],
    )
