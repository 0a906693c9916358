"""Loads the logs of some log directories at a start: threads, progress, interruption.

``survey`` reads what a directory states of itself and names its logs. It deletes the clean-shutdown marker first, so
that a crash while loading is seen as a crash (KAFKA-10471). ``Loading`` then opens the logs, after a crash in several
threads. It logs its progress every few seconds, and stops soon after ``interrupt``. An interrupted load has changed
nothing that the next one could miss: the marker is gone and the checkpoints are the old ones, so the next start scans
all of it again.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final, NamedTuple

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ConfigError, KafkaliteError, KafkaStorageError
from spark_kafkalite.log.files.awaiting_logs import note_awaiting
from spark_kafkalite.log.files.file_kind import Kind
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    MAX_BYTES,
    NO_TOPIC_ID,
    OWN_LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    CheckpointError,
    PartitionMetadata,
    read_offsets,
    read_own_starts,
    read_partition_metadata,
    read_small,
    read_topic_id,
)
from spark_kafkalite.log.loading.holes import Hole, SegmentSizes, StoppedLog, read_marker, report
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition, topic_name_problem

logger = logging.getLogger(__name__)

REPORT_EVERY_S = 5.0
_PARTITION_DIRECTORY = re.compile(r"(.+)-(\d+)")
_DELETED_SUFFIX = "-delete"
_OUT_OF_USE_SUFFIXES = (_DELETED_SUFFIX, "-stray")
_MAX_NAME_BYTES = 255


class LoadInterrupted(KafkaliteError):
    """The broker was stopped while its logs were loading."""


class FoundLog(NamedTuple):
    """One log as its directory and the checkpoints next to it describe it."""

    key: TopicPartition
    log_dir: str
    name: str
    last_run: LastRun

    @property
    def path(self) -> str:
        """The log's own directory."""
        return f"{self.log_dir}/{self.name}"


class DirectorySurvey(NamedTuple):
    """What one log directory holds."""

    clean: bool
    # Whether the marker of a clean stop was there; a directory without logs is clean without.
    marked: bool
    logs: list[FoundLog]
    # What has the name of a log and is no directory: somebody else's, or in the place of a log.
    misplaced: list[FoundLog]
    high_watermarks: dict[TopicPartition, int]
    # What a directory that is gone had: (log start offset, recovery point).
    vanished: dict[TopicPartition, tuple[int, int]]
    # Directories of deleted topics, to be removed.
    deleted: list[str]


def survey(fs: Fs, log_dir: str) -> DirectorySurvey:
    """Take the clean-shutdown marker, read the checkpoints and find the logs. OSError when the disk fails."""
    entries = fs.entries(log_dir)
    keys = {entry.name: key for entry in entries if (key := topic_partition_of(entry.name)) is not None}
    # A symbolic link in the place of a log's directory is not followed, and not passed over either.
    directories = {entry.name for entry in entries if entry.kind in (Kind.DIRECTORY, Kind.LINK)}
    stopped_with: Mapping[str, StoppedLog] = {}
    names = {entry.name for entry in entries}
    marked = CLEAN_SHUTDOWN_FILE in names
    if marked:
        try:
            stopped_with = read_marker(read_small(fs, f"{log_dir}/{CLEAN_SHUTDOWN_FILE}", MAX_BYTES))
        except CheckpointError as error:
            logger.warning("%s; recovering as after a crash", error)
            marked = False
    if marked:
        fs.unlink(f"{log_dir}/{CLEAN_SHUTDOWN_FILE}")
        fs.sync_directory(log_dir)
    # A new directory has nothing to recover; one with logs and without a marker was left by a crash.
    clean = marked or not (keys.keys() & directories)
    points = _read_checkpoint(fs, log_dir, RECOVERY_POINT_FILE)
    recovery_points = points or {}
    # Both files are first written when a directory has been in use for a minute.
    points_are_known = points is not None if RECOVERY_POINT_FILE in names else HIGH_WATERMARK_FILE not in names
    said_starts = _read_checkpoint(fs, log_dir, LOG_START_OFFSET_FILE) or {}
    own_starts = _read_own_starts(fs, log_dir)
    if own_starts is None:
        own_starts = said_starts
    start_offsets = {key: min(start, own_starts.get(key, 0)) for key, start in said_starts.items()}
    cleaned = _read_checkpoint(fs, log_dir, CLEANER_OFFSET_FILE) or {}
    high_watermarks = _read_checkpoint(fs, log_dir, HIGH_WATERMARK_FILE) or {}
    found = []
    for name, key in keys.items():
        stopped = stopped_with.get(name)
        last_run = LastRun(
            clean,
            recovery_points.get(key, 0),
            start_offsets.get(key, 0),
            cleaned.get(key, 0),
            high_watermarks.get(key, 0),
            None if stopped is None else stopped.segments,
            NO_LEADER_EPOCH if stopped is None else stopped.last_record_epoch,
            said_starts.get(key, 0),
            points_are_known,
        )
        found.append(FoundLog(key, log_dir, name, last_run))
    # A name that was taken out of use may still be in the checkpoints.
    out_of_use = {name.rpartition(".")[0] for name in directories if name.endswith(_OUT_OF_USE_SUFFIXES)}
    # Of a log that is gone with its directory every file may say how far it had come.
    ends = [
        recovery_points,
        high_watermarks,
        {
            key: _known_end(log.segments)
            for name, log in stopped_with.items()
            if (key := topic_partition_of(name)) is not None
        },
    ]
    gone = {key for each in ends for key in each if str(key) not in keys and str(key) not in out_of_use}
    vanished = {
        key: (start, end)
        for key in gone
        if (end := max(each.get(key, 0) for each in ends)) > (start := start_offsets.get(key, 0))
    }
    deleted = [f"{log_dir}/{name}" for name in sorted(directories) if name.endswith(_DELETED_SUFFIX)]
    return DirectorySurvey(
        clean,
        marked,
        [each for each in found if each.name in directories],
        [each for each in found if each.name not in directories],
        high_watermarks,
        vanished,
        deleted,
    )


def _known_end(sizes: SegmentSizes) -> int:
    """Return an offset up to which the log of these segments had come at least."""
    last = max(sizes, default=0)
    return last + 1 if sizes.get(last) else last


def report_vanished(log_dir: str, topic_partition: TopicPartition, start_offset: int, end_offset: int) -> None:
    """Write the line about a log of which the checkpoints know, and the whole directory is gone."""
    report(f"{log_dir}/{topic_partition}", [Hole(start_offset, end_offset, "the directory is missing")])


# In the place of a topic id that cannot be read, and so may be the present one.
_DAMAGED: Final = b""


def without_doubles(
    fs: Fs, found: Sequence[FoundLog], topic_id_of: Callable[[str], bytes | None] | None
) -> list[FoundLog]:
    """Set aside logs of older topics where another directory holds the same partition; ``found`` is sorted by key.

    That is what a directory leaves that was offline while its topic was deleted and made again, once or more often; the
    last one may have been deleted, too. ConfigError when both may be that of the topic that exists.
    """
    kept: list[FoundLog] = []
    for each in found:
        if not kept or kept[-1].key != each.key:
            kept.append(each)
            continue
        other = kept.pop()
        stale = _of_older_topics(fs, (other, each), topic_id_of)
        if not stale:
            raise ConfigError(f"partition {each.key} lies in {other.path} and in {each.path}: move one away")
        for one in stale:
            target = name_out_of_use(one.path, "stray")
            fs.rename(one.path, target)
            logger.warning("%s is the log of an older topic of its name; it is kept as %s", one.path, target)
        kept += [one for one in (other, each) if one not in stale]
    return kept


def _of_older_topics(
    fs: Fs, doubles: Sequence[FoundLog], topic_id_of: Callable[[str], bytes | None] | None
) -> list[FoundLog]:
    """Return those of two logs of one name that are not of the topic that has the name now."""
    if topic_id_of is None:
        return []
    ids = [_topic_id_in(fs, each) for each in doubles]
    current = topic_id_of(doubles[0].key.topic)
    if current is None and (not all(ids) or len(set(ids)) < len(ids)):
        # Without a topic only their ids tell that they are two.
        return []
    if current == NO_TOPIC_ID:
        return []
    return [each for each, topic_id in zip(doubles, ids, strict=True) if topic_id not in (current, _DAMAGED)]


def _topic_id_in(fs: Fs, found: FoundLog) -> bytes | None:
    """Return the topic id in a log's directory, None when it has none."""
    try:
        return read_topic_id(fs, f"{found.path}/{PARTITION_METADATA_FILE}")
    except CheckpointError:
        return _DAMAGED


class Identities:
    """Which topics the directories' logs belong to, by their own files. This is asked before a log's files are measured
    or recovered with checkpoints of the topic whose name the directory has."""

    def __init__(
        self, fs: Fs, found: Sequence[FoundLog], topic_id_of: Callable[[str], bytes | None] | None = None
    ) -> None:
        self._fs = fs
        names = {each.key.topic for each in found} if topic_id_of is not None else set()
        ids = {name: topic_id_of(name) for name in names}  # type: ignore[misc]
        # Of a topic whose node names no id nobody knows whose the logs are.
        self._ids = {name: topic_id for name, topic_id in ids.items() if topic_id not in (None, NO_TOPIC_ID)}
        self._names = {topic_id: name for name, topic_id in self._ids.items()}

    def metadata_in(self, found: FoundLog) -> PartitionMetadata | None:
        """Return whose log the directory holds by its file, None when it has none. OSError when the disk fails."""
        try:
            return read_partition_metadata(self._fs, f"{found.path}/{PARTITION_METADATA_FILE}")
        except (CheckpointError, NotADirectoryError):
            # An unsynced file that a power loss emptied: this log has had no record either (rule R21). What is no
            # directory is refused when it is opened.
            return None

    def is_foreign(self, found: FoundLog, metadata: PartitionMetadata | None) -> bool:
        """Return whether a log belongs to another topic than its directory's name: an older one of the name or one that
        exists. KafkaStorageError for the log of a topic that exists, or of another partition: names have been
        exchanged."""
        current = self._ids.get(found.key.topic)
        if current is None or metadata is None or self._fs.kind(found.path) is not Kind.DIRECTORY:
            return False
        if metadata.topic_id != current:
            owner = self._names.get(metadata.topic_id)
            whose = None if owner is None else f"topic {owner}, by the topic id"
        elif metadata.may_be_of(found.key.partition):
            return False
        else:
            whose = f"partition {found.key.topic}-{metadata.partition}, by the number"
        if whose is not None:
            raise KafkaStorageError(
                f"{found.path} holds a log of {whose} in its {PARTITION_METADATA_FILE}: give the directory its name "
                "back while the broker is stopped"
            )
        return True

    def set_aside(self, found: FoundLog) -> None:
        """Take the directory of a foreign log out of use, and keep it. OSError when it cannot be renamed."""
        kept = name_out_of_use(found.path, "stray")
        note_awaiting(self._fs, found.path, found.key, found.last_run.log_start_offset)
        self._fs.rename(found.path, kept)
        logger.warning(
            "the log of %s is that of an older topic of the same name; its files are kept in %s", found.key, kept
        )


def name_out_of_use(directory: str, suffix: str) -> str:
    """Return a new name for a log's directory, which no start takes for that of a log."""
    tail = f".{uuid.uuid4().hex}-{suffix}"
    parent, _, name = directory.rpartition("/")
    return f"{parent}/{name[: _MAX_NAME_BYTES - len(tail)]}{tail}"


def topic_partition_of(name: str) -> TopicPartition | None:
    """Return the partition in a directory's name, None when it is not that of a log (``-delete`` and ``-stray`` are
    not)."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None or topic_name_problem(match[1]) is not None:
        return None
    # Kafka writes no leading zeros; a directory that has them is somebody else's.
    return TopicPartition(match[1], int(match[2])) if match[2] == str(int(match[2])) else None


def _read_checkpoint(fs: Fs, log_dir: str, name: str) -> dict[TopicPartition, int] | None:
    """Read an offset checkpoint, None if it is damaged. Without it more is scanned, and nothing is lost."""
    try:
        return read_offsets(fs, f"{log_dir}/{name}")
    except CheckpointError as error:
        logger.warning("%s; continuing without it", error)
        return None


def _read_own_starts(fs: Fs, log_dir: str) -> dict[TopicPartition, int] | None:
    """Return the log starts that the broker has written, empty where the file was edited or damaged. None where the
    broker has written none; then the checkpoint is believed."""
    try:
        return read_own_starts(fs, f"{log_dir}/{OWN_LOG_START_FILE}")
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        logger.error("%s; so the offsets in %s have to be confirmed", error, LOG_START_OFFSET_FILE)
        return {}


class Loading:
    """The opening of all logs, with its progress. ``interrupt`` may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._interrupted = threading.Event()
        self._lock = threading.Lock()
        self._began_s = self._reported_s = clock.monotonic_s()
        self._total = self._opened = self._scanned_bytes = 0

    @property
    def remaining(self) -> int:
        """How many logs are yet to be opened."""
        return self._total - self._opened

    def interrupt(self) -> None:
        """Have ``open_all`` end soon, with LoadInterrupted."""
        self._interrupted.set()

    def open_all(self, found: Sequence[FoundLog], open_log: Callable[[FoundLog], None], threads_per_dir: int) -> None:
        """Call ``open_log`` for each log. Those to recover are spread over ``threads_per_dir`` threads for each log
        directory: scanning waits for the disk and for checksums, both outside of the interpreter's lock."""
        self._total = len(found)
        log_dirs = {each.log_dir for each in found}
        threads = len(log_dirs) * threads_per_dir
        if threads == 1 or all(each.last_run.clean for each in found):
            for each in found:
                self._open(each, open_log)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="kafkalite-recovery") as executor:
            # Each directory's disk gets its own threads, and none takes the logs of another.
            lanes: list[list[FoundLog]] = []
            for log_dir in sorted(log_dirs):
                here = [each for each in found if each.log_dir == log_dir]
                lanes += [here[number::threads_per_dir] for number in range(threads_per_dir)]
            futures = [executor.submit(self._open_lane, lane, open_log) for lane in lanes]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [error for each in done if (error := each.exception()) is not None]
            if failed:
                self._interrupted.set()
                raise failed[0]

    def _open_lane(self, found: Sequence[FoundLog], open_log: Callable[[FoundLog], None]) -> None:
        for each in found:
            self._open(each, open_log)

    def _open(self, found: FoundLog, open_log: Callable[[FoundLog], None]) -> None:
        if self._interrupted.is_set():
            raise LoadInterrupted("interrupted while loading logs")
        open_log(found)
        with self._lock:
            self._opened += 1
        self._maybe_report(found.path)

    def on_bytes(self, path: str, count: int) -> None:
        """Note that a part of a segment has been scanned. Raises LoadInterrupted after ``interrupt``."""
        if self._interrupted.is_set():
            raise LoadInterrupted(f"interrupted while recovering {path}")
        with self._lock:
            self._scanned_bytes += count
        self._maybe_report(path)

    def _maybe_report(self, path: str) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            if now_s - self._reported_s < REPORT_EVERY_S:
                return
            self._reported_s = now_s
        logger.info("loading logs: %s; now at %s", self.describe(), path)

    def describe(self) -> str:
        """Return how far the loading is: logs, and what was scanned at which rate."""
        text = f"{self._opened} of {self._total} logs"
        if self._scanned_bytes:
            seconds = max(self._clock.monotonic_s() - self._began_s, 0.001)
            rate = self._scanned_bytes / 1e6 / seconds
            text += f", {self._scanned_bytes / 1e6:.1f} MB scanned in {seconds:.1f} s ({rate:.0f} MB/s)"
        return text
