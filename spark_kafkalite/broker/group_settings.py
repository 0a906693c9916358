"""The broker's settings of committed offsets and of the topic that keeps them; ``config.py`` takes them in."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.settings import Setting

OFFSET_SETTINGS: Final = (
    Setting(
        "offsets.topic.num.partitions",
        "int",
        50,
        "Partitions of __consumer_offsets, over which groups are spread; counts when the topic is made, with the "
        "first group.",
        minimum=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        "int",
        1,
        "Replicas of __consumer_offsets; there are no groups until that many brokers live. Counts when it is made.",
        minimum=1,
        maximum=32767,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        "int",
        100 * 1024 * 1024,
        "segment.bytes of __consumer_offsets: small segments are compacted soon, and few bytes are read at a start. "
        "Counts when it is made.",
        unit="bytes",
        minimum=14,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        "int",
        5_000,
        "A commit, or the state of a group, must be in all in-sync replicas of __consumer_offsets after this time; "
        "else whoever waits for it is told so, and may ask again.",
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
        "A group's committed offsets go this long after it has become empty; those of clients without a group, this "
        "long after their last commit.",
        unit="minutes",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        "long",
        600_000,
        "How often expired offsets, and groups without any, are looked for.",
        unit="ms",
        minimum=1,
    ),
)
