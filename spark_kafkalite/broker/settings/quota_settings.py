"""Declares the settings of quotas, of throttled replication, and of how many connections may be opened in a second."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.model import UNLIMITED_RATE
from spark_kafkalite.settings import Setting

# Of the broker, and of each listener.
CONNECTION_RATE: Final = "max.connection.creation.rate"

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"

QUOTA_SETTINGS: Final = (
    Setting(
        "quota.window.num",
        "int",
        11,
        "How much of its quota a client may save up: what it has not used in a fifth of so many windows, less one, of "
        "quota.window.size.seconds, it may use at once.",
        minimum=1,
        maximum=10_000,
    ),
    Setting(
        "quota.window.size.seconds",
        "int",
        1,
        "Length of a window of quotas. A client that comes for the first time may use the allowance of one window at "
        "once. It is also the longest pause for request_percentage.",
        unit="seconds",
        minimum=1,
        maximum=3600,
    ),
    Setting(
        CONNECTION_RATE,
        "int",
        2**31 - 1,
        "Connections that clients may open in a second; further ones wait in the kernel, up to a second at a time. "
        "Those at a listener that is for brokers alone are not counted. A listener may have a rate of its own: "
        "listener.name.NAME.max.connection.creation.rate.",
        unit="connections per second",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "replication.quota.window.num",
        "int",
        11,
        "Windows of throttled replication that are remembered: what was copied beyond the rate is forgotten after so "
        "many windows of replication.quota.window.size.seconds, so that a very low rate still lets something pass.",
        minimum=1,
        maximum=10_000,
    ),
    Setting(
        "replication.quota.window.size.seconds",
        "int",
        1,
        "Length of a window of throttled replication.",
        unit="seconds",
        minimum=1,
        maximum=3600,
    ),
    Setting(
        LEADER_RATE,
        "long",
        UNLIMITED_RATE,
        "What followers that are not in sync may copy from this broker in a second, of the replicas that topics name "
        "in leader.replication.throttled.replicas. kafka-reassign-partitions and kafkalite cluster reassign set it "
        "(--throttle), and remove it after the reassignment (--verify).",
        unit="bytes per second",
        minimum=0,
        dynamic=True,
    ),
    Setting(
        FOLLOWER_RATE,
        "long",
        UNLIMITED_RATE,
        "What this broker may copy from leaders in a second, of the replicas that topics name in "
        "follower.replication.throttled.replicas and that are not in sync.",
        unit="bytes per second",
        minimum=0,
        dynamic=True,
    ),
    Setting(
        LOG_DIRS_RATE,
        "long",
        UNLIMITED_RATE,
        "Accepted, because Kafka's tools set and delete it. It has no effect: brokers move no logs between their log "
        "directories.",
        unit="bytes per second",
        minimum=0,
        dynamic=True,
    ),
)

_CONTROLLER: Final = "the creation and deletion of topics has no quota"
QUOTAS_WITHOUT_EFFECT: Final = {
    "controller.quota.window.num": _CONTROLLER,
    "controller.quota.window.size.seconds": _CONTROLLER,
}
