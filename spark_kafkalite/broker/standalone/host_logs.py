"""Reads the log directories of one broker, for rebuilding a registry from them. Changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.standalone.log_dirs_survey import ClusterSurvey, survey_log_dirs
from spark_kafkalite.broker.standalone.registry_evidence import noted_zxid
from spark_kafkalite.errors import ConfigError, KafkaStorageError
from spark_kafkalite.log.directories.runs import read_run
from spark_kafkalite.log.directories.siblings import DIRECTORY_ID, find_siblings
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import (
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    META_FILE,
    CheckpointError,
    read_offsets,
)
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, TopicPartition
from spark_kafkalite.registry.recovery.host_logs import HostLog, HostLogs


@contextlib.contextmanager
def locked_log_dirs(fs: Fs, log_dirs: Sequence[str]) -> Iterator[None]:
    """Lock the directories against brokers meanwhile. Raises ConfigError or KafkaStorageError if that fails."""
    with contextlib.ExitStack() as stack:
        for path in log_dirs:
            if not fs.exists(path):
                raise ConfigError(f"log directory {path} does not exist: name all directories of log.dirs as they are")
            try:
                lock = fs.lock(f"{path}/{LOCK_FILE}")
            except OSError as error:
                raise KafkaStorageError(f"log directory {path} cannot be used: {error.strerror or error}") from error
            if lock is None:
                raise ConfigError(f"log directory {path} is in use by a broker: stop it first")
            stack.callback(lock.release)
        yield


def read_host_logs(
    fs: Fs,
    log_dirs: Sequence[str],
    broker_id: int | None = None,
    lost: Collection[str] = (),
    *,
    default_id: int | None = None,
) -> HostLogs:
    """Read all log directories of one broker.

    ``broker_id`` applies if no ``meta.properties`` names the broker, and ``default_id`` if ``broker_id`` is None.
    Raises ConfigError if the directories contradict each other, or if they know another one that is not among them and
    whose id is not in ``lost``. Raises KafkaStorageError if a directory is unreadable, because a topic that is missing
    here would be lost for good.
    """
    try:
        missing = find_siblings(fs, log_dirs, lost).missing
        if missing:
            each = ", ".join(f"{path} ({DIRECTORY_ID} {directory_id})" for directory_id, path in missing.items())
            raise ConfigError(
                f"the log directories know others that are missing or empty: {each}; topics and partitions that lie "
                "there would be left out: mount them and name all directories; if they are lost for good, add "
                + " ".join(f"--lost {directory_id}" for directory_id in missing)
            )
        survey = survey_log_dirs(fs, log_dirs)
        zxid = noted_zxid(fs, log_dirs)
        high_watermarks = _high_watermarks(fs, log_dirs, survey)
    except OSError as error:
        raise KafkaStorageError(f"a log directory cannot be read: {error}") from error
    if broker_id is not None and survey.broker_id not in (None, broker_id):
        raise ConfigError(f"the log directories belong to broker {survey.broker_id}, not to {broker_id}")
    broker = next((each for each in (survey.broker_id, broker_id, default_id) if each is not None), None)
    if broker is None:
        raise ConfigError(
            f"{', '.join(log_dirs)}: no {META_FILE} names the broker; name its properties file (--config)"
        )
    runs = {run.incarnation for path in log_dirs if (run := read_run(fs, path)) is not None}
    logs = []
    for name, topic in sorted(survey.topics.items()):
        for number, ids in sorted(topic.ids.items()):
            key = TopicPartition(name, number)
            # All logs of a topic that have an id have the same one.
            topic_id = None if number in topic.nameless else next(iter(topic.topic_ids), None)
            committed = high_watermarks.get(key, 0)
            logs.append(
                HostLog(key, topic_id, ids.last_epoch, ids.end_offset, ids.leader_epoch, ids.is_damaged, committed)
            )
    return HostLogs(
        BrokerId(broker),
        survey.cluster_id,
        runs.pop() if len(runs) == 1 else UNKNOWN_INCARNATION,
        zxid,
        max((ids.producer_id for topic in survey.topics.values() for ids in topic.ids.values()), default=-1),
        tuple(logs),
        frozenset(name for name, topic in survey.topics.items() if topic.compacted),
        tuple(survey.strays),
        tuple(survey.problems),
    )


def offsets_topic_config() -> dict[str, str]:
    """Return the settings with which a broker creates the topic for groups' offsets."""
    segment_bytes = BROKER_SETTINGS["offsets.topic.segment.bytes"].default
    return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}


def _high_watermarks(fs: Fs, log_dirs: Sequence[str], survey: ClusterSurvey) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for path in log_dirs:
        try:
            found.update(read_offsets(fs, f"{path}/{HIGH_WATERMARK_FILE}"))
        except CheckpointError as error:
            survey.problems.append(f"{error}; which records were acknowledged is not known there")
    return found
