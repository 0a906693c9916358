"""Reads from a broker's log directories which cluster they belong to, which topics they hold, and which ids are in use.

Reads only. Whatever could name a topic wrongly, or leave one out, is an error: directories of two clusters, a partition
in two places, one topic with two ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.log.files.awaiting_logs import STRAY_SUFFIX
from spark_kafkalite.log.files.file_kind import Kind, misplaced
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import (
    CLEANER_OFFSET_FILE,
    META_FILE,
    PARTITION_METADATA_FILE,
    CheckpointError,
    read_meta,
    read_offsets,
    read_partition_metadata,
)
from spark_kafkalite.log.loading.highest_ids import HighestIds, highest_ids
from spark_kafkalite.log.loading.loader import topic_partition_of
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.node_json import MAX_INT32, number

# So many partitions below a directory's number may have no log, however few have one, and this many for each that has.
_FEW_MISSING: Final = 1_000
_MISSING_FOR_EACH: Final = 10


@dataclass(slots=True)
class SurveyedTopic:
    """One topic's logs, by partition. ``topic_ids``: each id that they name, with the first directory that does;
    ``nameless``: partitions whose logs name none."""

    directories: dict[int, str] = field(default_factory=dict)
    ids: dict[int, HighestIds] = field(default_factory=dict)
    topic_ids: dict[bytes, str] = field(default_factory=dict)
    nameless: set[int] = field(default_factory=set)
    compacted: bool = False


@dataclass(slots=True)
class ClusterSurvey:
    """What was found. None for an id that no directory names; ``problems``: what could not be read or believed."""

    cluster_id: str | None
    broker_id: int | None
    topics: dict[str, SurveyedTopic] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def stored_cluster_id(fs: Fs, log_dirs: Sequence[str]) -> str | None:
    """Return the cluster id that the directories belong to, None when they are new. ConfigError when a file is damaged.

    A directory that cannot be read is, or will be, offline.
    """
    for path in log_dirs:
        try:
            meta = read_meta(fs, f"{path}/{META_FILE}")
        except CheckpointError as error:
            raise ConfigError(str(error)) from error
        except OSError:
            continue
        if meta is not None and "cluster.id" in meta:
            return meta["cluster.id"]
    return None


def survey_log_dirs(fs: Fs, log_dirs: Sequence[str]) -> ClusterSurvey:
    """Read the directories. ConfigError when they contradict each other, OSError when one cannot be read."""
    survey = ClusterSurvey(*_identity(fs, log_dirs))
    found = survey.topics
    for path in log_dirs:
        for entry in fs.entries(path):
            key = topic_partition_of(entry.name)
            if entry.is_directory and entry.name.endswith(STRAY_SUFFIX):
                survey.strays.append(f"{path}/{entry.name}")
            if key is not None and not entry.is_directory:
                problem = misplaced(f"{path}/{entry.name}", entry.kind, Kind.DIRECTORY).strerror
                survey.problems.append(f"{problem}; without it no log of {key} counts")
            elif key is not None:
                _survey_log(fs, f"{path}/{entry.name}", key, found.setdefault(key.topic, SurveyedTopic()), survey)
        try:
            for key in read_offsets(fs, f"{path}/{CLEANER_OFFSET_FILE}"):
                if key.topic in found:
                    found[key.topic].compacted = True
        except CheckpointError as error:
            survey.problems.append(f"{error}; which topics were compacted is not known")
    owners: dict[bytes, tuple[str, str]] = {}
    for name, logs in found.items():
        _check_numbers(name, logs)
        for topic_id, where in logs.topic_ids.items():
            other, other_where = owners.setdefault(topic_id, (name, where))
            if other != name:
                raise ConfigError(
                    f"{other_where} and {where} have the same topic id, {znodes.uuid_text(topic_id)}: one is a copy; "
                    f"move it out of the log directory, or put its own {PARTITION_METADATA_FILE} back"
                )
        if len(logs.topic_ids) > 1:
            each = ", ".join(f"{where}: {znodes.uuid_text(topic_id)}" for topic_id, where in logs.topic_ids.items())
            raise ConfigError(
                f"logs of topic {name} have different topic ids ({each}): move those of the older one away"
            )
    return survey


def _identity(fs: Fs, log_dirs: Sequence[str]) -> tuple[str | None, int | None]:
    """Return the cluster id and broker id of the directories. ConfigError when they disagree."""
    said: dict[str, dict[str, str]] = {"cluster.id": {}, "broker.id": {}}
    for path in log_dirs:
        try:
            meta = read_meta(fs, f"{path}/{META_FILE}") or {}
        except CheckpointError as error:
            raise ConfigError(str(error)) from error
        if meta.get("version") == "1":
            raise ConfigError(
                f"log directory {path} belongs to a node of Apache Kafka: its topics are not ours to name"
            )
        for name, values in said.items():
            if name in meta:
                values.setdefault(meta[name], path)
    for name, values in said.items():
        if len(values) > 1:
            each = ", ".join(f"{path}: {value}" for value, path in values.items())
            raise ConfigError(f"the log directories have different values of {name} ({each}): name those of one broker")
    cluster_id, broker_id = (next(iter(values), None) for values in said.values())
    try:
        if cluster_id is not None:
            znodes.uuid_bytes(cluster_id)
        return cluster_id, None if broker_id is None else number(broker_id, 0, MAX_INT32)
    except ValueError as error:
        raise ConfigError(f"{META_FILE} of {', '.join(log_dirs)}: {error}") from error


def _check_numbers(name: str, logs: SurveyedTopic) -> None:
    """Raise ConfigError for a directory whose number stands alone far above the others: it would make a topic of
    partitions that never were."""
    highest = max(logs.directories)
    missing = highest + 1 - len(logs.directories)
    if missing > _FEW_MISSING and missing > _MISSING_FOR_EACH * len(logs.directories):
        raise ConfigError(
            f"{logs.directories[highest]}: of the {highest} partitions of topic {name} below it {missing} have no log; "
            "move it out of the log directory if it is none of the topic's"
        )


def _survey_log(fs: Fs, directory: str, key: TopicPartition, logs: SurveyedTopic, survey: ClusterSurvey) -> None:
    if key.partition >= znodes.MAX_PARTITIONS:
        raise ConfigError(f"{directory}: no topic has {key.partition} partitions; move it out of the log directory")
    if key.partition in logs.directories:
        raise ConfigError(
            f"partition {key} lies in {logs.directories[key.partition]} and in {directory}: move one away"
        )
    logs.directories[key.partition] = directory
    logs.ids[key.partition] = highest_ids(fs, directory)
    survey.problems += logs.ids[key.partition].problems
    try:
        metadata = read_partition_metadata(fs, f"{directory}/{PARTITION_METADATA_FILE}")
    except CheckpointError as error:
        raise ConfigError(f"{error}: restore it, or remove it if the topic's other partitions name the id") from error
    if metadata is None:
        logs.nameless.add(key.partition)
        return
    if not metadata.may_be_of(key.partition):
        raise ConfigError(
            f"{directory} holds the log of partition {metadata.partition}, by its {PARTITION_METADATA_FILE}: give the "
            "directory its name back"
        )
    logs.topic_ids.setdefault(metadata.topic_id, directory)
