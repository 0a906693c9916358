"""The settings of a consumer in a group: declarations, checks, and the frozen object that holds their values.

Part of :data:`.config.CONSUMER_SETTINGS`. Names, defaults and checks are those of Kafka's Java consumer with the
classic group protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.client.group.assignors import Assignor, RangeAssignor, RoundRobinAssignor
from spark_kafkalite.client.group.sticky import CooperativeStickyAssignor, StickyAssignor
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.settings import Setting

GROUP_SETTINGS: Final = (
    Setting(
        "group.id",
        "string",
        None,
        "Consumer group: its members share the subscribed topics, and commit offsets under its name.",
    ),
    Setting(
        "group.instance.id",
        "string",
        None,
        "Makes this a static member, which may restart within session.timeout.ms without a rebalance.",
    ),
    Setting(
        "group.protocol",
        "string",
        "classic",
        "Protocol between members and coordinator; only classic is supported.",
        choices=("classic", "consumer"),
    ),
    Setting(
        "partition.assignment.strategy",
        "list",
        ("range", "cooperative-sticky"),
        "Assignors in order of preference: range, roundrobin, sticky, cooperative-sticky; Java's class names work too. "
        "Members keep their partitions during a rebalance only when all are cooperative.",
    ),
    Setting(
        "session.timeout.ms",
        "int",
        45_000,
        "A member that sends no heartbeat for this long is taken out of its group.",
        unit="ms",
        minimum=1,
    ),
    Setting("heartbeat.interval.ms", "int", 3_000, "Time between heartbeats.", unit="ms", minimum=1),
    Setting(
        "max.poll.interval.ms",
        "int",
        300_000,
        "A member that does not call poll() for this long leaves its group; also how long a rebalance waits for it.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "enable.auto.commit",
        "boolean",
        None,
        "Commit in the background what earlier polls returned (default: true with a group.id).",
        synonyms=("auto.commit.enable",),
    ),
    Setting("auto.commit.interval.ms", "int", 5_000, "Time between automatic commits.", unit="ms", minimum=0),
    Setting("exclude.internal.topics", "boolean", True, "Leave Kafka's own topics out of subscriptions by pattern."),
)

_ASSIGNORS: Final[tuple[Assignor, ...]] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)
_CLASS_PREFIX: Final = "org.apache.kafka.clients.consumer."


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """How a consumer behaves in its group. Times are milliseconds."""

    group_id: str
    group_instance_id: str | None
    assignors: tuple[Assignor, ...]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    auto_commit: bool
    auto_commit_interval_ms: int
    exclude_internal_topics: bool
    client_rack: str

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept while joining; every assignor must be for it, because any may be chosen."""
        return all(each.is_cooperative for each in self.assignors)


def group_config(values: Mapping[str, Any]) -> GroupConfig | None:
    """Return the settings of a group's consumer, None without a ``group.id``. Raises ConfigError."""
    group_id = values["group.id"]
    if values["group.protocol"] != "classic":
        raise ConfigError(f"group.protocol={values['group.protocol']}: only the classic protocol is supported")
    if not group_id:
        for name in ("group.instance.id", "enable.auto.commit"):
            if values[name]:
                raise ConfigError(f"{name}={values[name]}: needs a group.id")
        return None
    if values["heartbeat.interval.ms"] >= values["session.timeout.ms"]:
        raise ConfigError(
            f"heartbeat.interval.ms={values['heartbeat.interval.ms']}: must be below session.timeout.ms="
            f"{values['session.timeout.ms']}, and should be a third of it at most"
        )
    names = values["partition.assignment.strategy"]
    if not names:
        raise ConfigError("partition.assignment.strategy is empty: name at least one assignor")
    auto_commit = values["enable.auto.commit"]
    return GroupConfig(
        group_id=group_id,
        group_instance_id=values["group.instance.id"] or None,
        assignors=tuple(assignor(name) for name in dict.fromkeys(names)),
        session_timeout_ms=values["session.timeout.ms"],
        heartbeat_interval_ms=values["heartbeat.interval.ms"],
        max_poll_interval_ms=values["max.poll.interval.ms"],
        auto_commit=auto_commit is not False,
        auto_commit_interval_ms=values["auto.commit.interval.ms"],
        exclude_internal_topics=values["exclude.internal.topics"],
        client_rack=values["client.rack"],
    )


def assignor(name: str) -> Assignor:
    """Return the assignor of a name, Kafka's short one or the name of Java's class. Raises ConfigError."""
    for each in _ASSIGNORS:
        if name in (each.name, f"{_CLASS_PREFIX}{type(each).__name__}"):
            return each
    raise ConfigError(
        f"partition.assignment.strategy={name}: must be one of {', '.join(each.name for each in _ASSIGNORS)}"
    )
