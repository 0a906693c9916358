"""The source's options about committed offsets: where a stream commits, and what starts from them.

A group's offsets live at Kafka's group coordinator, under ZooKeeper's ``/consumers/G/offsets/T/P``, or in both places.
Nothing is ever committed without ``groupId``: ``kafka.group.id`` is what the JVM connector takes for its consumers, and
alone never commits. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.settings import Setting
from spark_kafkalite.spark.conditions import INVALID_OPTION, option_error
from spark_kafkalite.spark.options.offset_options import OffsetSpec

COMMIT_SETTINGS: Final = (
    Setting(
        "groupId",
        "string",
        None,
        "The consumer group that a stream commits its finished offsets to and startingOffsets=committed starts from. "
        "Reading never joins it; kafka.group.id alone never commits.",
    ),
    Setting(
        "commitOffsets",
        "string",
        None,
        "Streams: where finished offsets are committed: group (the group's coordinator), zookeeper (the paths of "
        "registry consumers), both or none. Default: group with groupId, none without.",
        choices=("group", "zookeeper", "both", "none"),
    ),
    Setting(
        "committedFallback",
        "string",
        "fail",
        "Where startingOffsets=committed starts a partition that the group has committed nothing for.",
        choices=("fail", "earliest", "latest"),
    ),
    Setting(
        "zookeeper.connect",
        "string",
        None,
        "host:port,...[/chroot] of the ZooKeeper ensemble or, on the driver's host, of a broker's registry.listener, "
        "for commitOffsets=zookeeper and both. kafka.zookeeper.connect is the same.",
    ),
)


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """The checked options. ``group_id`` is set wherever anything is committed or started from."""

    group_id: str | None = None
    to_group: bool = False
    to_zookeeper: bool = False
    zookeeper_connect: str | None = None
    fallback: str = "fail"

    @property
    def commits(self) -> bool:
        """Whether a stream's offsets are committed anywhere."""
        return self.to_group or self.to_zookeeper


def commit_options(given: Mapping[str, Any], starting: OffsetSpec | None, notes: list[str]) -> CommitOptions:
    """Return the options of committed offsets; ``notes`` gets the warnings.

    Raises SparkConditionError for what does not fit.
    """
    group_id = given.get("groupId")
    commit = given.get("commitOffsets") or ("none" if group_id is None else "group")
    connect = given.get("zookeeper.connect")
    from_committed = starting is not None and starting.committed
    if group_id is not None:
        _check_group(group_id, commit)
    elif commit != "none":
        raise option_error(
            INVALID_OPTION, "groupId", None, f"commitOffsets={commit} needs the group to commit to; set groupId"
        )
    elif from_committed:
        raise option_error(
            INVALID_OPTION,
            "groupId",
            None,
            "startingOffsets=committed needs the group whose offsets to start from; set groupId",
        )
    to_zookeeper = commit in ("zookeeper", "both")
    if to_zookeeper and not (connect or "").strip():
        raise option_error(
            INVALID_OPTION,
            "zookeeper.connect",
            connect,
            f"commitOffsets={commit} needs the address of the ensemble; set zookeeper.connect=host:port,...[/chroot]",
        )
    if connect is not None and not to_zookeeper:
        notes.append(
            f"option zookeeper.connect has no effect with commitOffsets={commit}; only zookeeper and both use it"
        )
    if "committedFallback" in given and not from_committed:
        notes.append("option committedFallback has no effect without startingOffsets=committed")
    return CommitOptions(
        group_id=group_id,
        to_group=commit in ("group", "both"),
        to_zookeeper=to_zookeeper,
        zookeeper_connect=connect.strip() if to_zookeeper and connect is not None else None,
        fallback=given.get("committedFallback", "fail"),
    )


def _check_group(group_id: str, commit: str) -> None:
    if not group_id.strip():
        raise option_error(INVALID_OPTION, "groupId", group_id, "names no group; give it a name, or leave it out")
    if commit not in ("zookeeper", "both"):
        return
    if group_id in (".", "..") or any(each in "/\x7f" or each < " " for each in group_id):
        raise option_error(
            INVALID_OPTION,
            "groupId",
            group_id,
            f"commitOffsets={commit} makes it a part of ZooKeeper's path /consumers/GROUP/offsets, which '/', control "
            "characters, '.' and '..' cannot be; take another name",
        )
