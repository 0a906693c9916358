"""Small files that are replaced as a whole: checkpoints, ``partition.metadata``, ``meta.properties``.

All are text, in Kafka's formats:

* offset checkpoints (``recovery-point-offset-checkpoint``, ``log-start-offset-checkpoint``,
  ``replication-offset-checkpoint``, ``cleaner-offset-checkpoint``) of a log directory: line 1 the version ``0``, line 2
  the number of entries, then one line ``topic partition offset`` each;
* ``leader-epoch-checkpoint`` of a partition: the same head, then lines ``epoch start_offset``;
* ``damaged-ranges`` of a partition, only while some of its offsets are missing or cannot be read
  (``known_damage``): the same head, then lines ``start_offset end_offset``, and behind them ``crc32c`` and eight
  hexadecimal digits, of all that comes before;
* ``cleaner-swap`` of a partition, only while cleaned segments take the place of others (``swap``): the same head, then
  lines ``end_offset base_offset log_bytes index_bytes time_index_bytes source,source,...``, a segment each;
* ``registry-zxid-checkpoint`` of a log directory: the same head, then the number of a transaction of the registry;
* ``partition.metadata``: ``version: 0`` and ``topic_id: <22 characters of URL-safe base64>``. Behind these lines, where
  Kafka does not read, ``partition: N`` and ``crc32c: <8 hexadecimal digits>`` of what comes before. Kafka and earlier
  versions do not write them;
* ``meta.properties`` of a log directory: ``version=0``, ``broker.id=N``, ``cluster.id=...``, and more (``siblings``);
* ``kafkalite-compared`` of a log directory: the same head, then one line, the time in ms at which the last comparison
  with the leaders ended, 0 when one has begun and not ended (``broker.replication.comparison``);
* ``kafkalite-log-starts`` of a log directory: in the same format as ``log-start-offset-checkpoint`` what the broker
  itself has written into that, and behind it the checksum as in ``damaged-ranges`` (``log_starts``);
* ``kafkalite-run`` of a log directory: JSON, see ``directories.runs``.

Each is written to ``.tmp``, synced, renamed over the old one, and the directory is synced, so a crash leaves the old
file or the new one. A file that does not read as above is :class:`CheckpointError`: it was not left by a crash.
"""

from __future__ import annotations

import base64
import binascii
import errno
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.files.fs import Fs, replace_file
from spark_kafkalite.model import MAX_REGISTRY_ZXID, TopicPartition
from spark_kafkalite.records.layout import MAX_INT32, MAX_INT64

logger = logging.getLogger(__name__)

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
SWAP_FILE = "cleaner-swap"
REGISTRY_ZXID_FILE = "registry-zxid-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
RUN_FILE = "kafkalite-run"
OWN_LOG_START_FILE = "kafkalite-log-starts"
COMPARED_FILE = "kafkalite-compared"
META_FILE = "meta.properties"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
DAMAGED_RANGES_FILE = "damaged-ranges"

NO_TOPIC_ID = bytes(16)
# What a million partitions with long names need.
MAX_BYTES: Final = 256 * 1024 * 1024
_MOST_LINES: Final = 1_000_002
# Of a file that describes one log or one directory.
_FEW_BYTES: Final = 1024 * 1024
_CRC_MARK: Final = "crc32c "
_METADATA_CRC_MARK: Final = "crc32c: "


class CheckpointError(KafkaliteError):
    """A small file of a log directory does not have its format."""


def read_small(fs: Fs, path: str, most_bytes: int = _FEW_BYTES) -> bytes:
    """Return a small file's bytes. Raises CheckpointError for what is no file, or has more than ``most_bytes``."""
    try:
        file = fs.open(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ESPIPE):
            raise CheckpointError(error.strerror) from error
        raise
    size_bytes = file.size()
    if size_bytes > most_bytes:
        raise CheckpointError(f"{path}: {size_bytes} bytes are too many, at most {most_bytes} are read")
    return file.pread(size_bytes, 0)


def _read_lines(fs: Fs, path: str, fields: int) -> list[list[str]]:
    """Return the fields of each entry of a version 0 checkpoint; nothing when the file is missing."""
    try:
        raw = read_small(fs, path, MAX_BYTES)
    except FileNotFoundError:
        return []
    try:
        return _lines_of(raw.decode(), path, fields)
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: it is not text") from None


def _lines_of(text: str, path: str, fields: int) -> list[list[str]]:
    line_count = text.count("\n")
    if line_count > _MOST_LINES:
        # As objects they take many times the memory of the file.
        raise CheckpointError(f"{path}: {line_count} lines are too many, at most {_MOST_LINES} are read")
    try:
        lines = text.split("\n")
        version, count = int(lines[0]), int(lines[1])
        entries = [line.split(" ", fields) for line in lines[2:] if line]
    except (ValueError, IndexError):
        raise CheckpointError(f"{path}: the first two lines are not a version and a number of entries") from None
    if version != 0:
        raise CheckpointError(f"{path}: version {version} is not known, only 0 is")
    if not text.endswith("\n"):
        # A number that a power cut has shortened is a number still.
        raise CheckpointError(f"{path}: its last line is cut off")
    if count != len(entries):
        raise CheckpointError(f"{path}: {count} entries announced, {len(entries)} found")
    if any(len(entry) != fields for entry in entries):
        raise CheckpointError(f"{path}: an entry does not have {fields} fields")
    return entries


def _text_of(lines: Iterable[str]) -> str:
    entries = list(lines)
    return "\n".join(["0", str(len(entries)), *entries]) + "\n"


def _write_lines(fs: Fs, path: str, lines: Iterable[str], *, sync: bool = True) -> None:
    replace_file(fs, path, _text_of(lines).encode(), sync=sync)


def _read_checked(fs: Fs, path: str) -> str:
    """Return what stands before the checksum of a file that has one."""
    try:
        text = read_small(fs, path, MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: it is not text") from None
    head, separator, crc = text.rpartition(_CRC_MARK)
    if not separator or crc != f"{crc32c(head.encode()):08x}\n":
        raise CheckpointError(f"{path}: its checksum is missing or wrong")
    return head


def _write_checked(fs: Fs, path: str, lines: Iterable[str]) -> None:
    text = _text_of(lines)
    replace_file(fs, path, f"{text}{_CRC_MARK}{crc32c(text.encode()):08x}\n".encode())


def read_offsets(fs: Fs, path: str) -> dict[TopicPartition, int]:
    """Return an offset checkpoint's entries; empty when the file is missing, or made and not written, as Kafka does.

    An entry that no log can have costs its partition alone: it is left out and logged.
    """
    if fs.exists(path) and not read_small(fs, path, MAX_BYTES):
        return {}
    return _offsets_of(_read_lines(fs, path, 3), path)


def _offsets_of(entries: Iterable[Sequence[str]], path: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in entries:
        try:
            key, number = TopicPartition(topic, int(partition)), int(offset)
        except ValueError:
            raise CheckpointError(f"{path}: {topic} {partition} {offset} is not an entry") from None
        if 0 <= number < MAX_INT64 and 0 <= key.partition <= MAX_INT32:
            offsets[key] = number
        else:
            logger.warning(
                "%s: %s %s %s is not an offset of a log; continuing without it", path, topic, partition, offset
            )
    return offsets


def write_offsets(fs: Fs, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint."""
    _write_lines(fs, path, _lines_of_offsets(offsets))


def _lines_of_offsets(offsets: Mapping[TopicPartition, int]) -> Iterable[str]:
    return (f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items()))


def read_own_starts(fs: Fs, path: str) -> dict[TopicPartition, int]:
    """Return the entries of ``kafkalite-log-starts``. FileNotFoundError when it is missing."""
    return _offsets_of(_lines_of(_read_checked(fs, path), path, 3), path)


def write_own_starts(fs: Fs, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace ``kafkalite-log-starts``."""
    _write_checked(fs, path, _lines_of_offsets(offsets))


def read_registry_zxid(fs: Fs, path: str) -> int:
    """Return the registry's transaction that a log directory knows of; 0 when the file is missing."""
    try:
        zxids = [int(zxid) for (zxid,) in _read_lines(fs, path, 1)]
    except ValueError:
        raise CheckpointError(f"{path}: an entry is not a number") from None
    for zxid in zxids:
        if not 0 <= zxid <= MAX_REGISTRY_ZXID:
            raise CheckpointError(f"{path}: no registry has reached transaction {zxid}; remove the file")
    return max(zxids, default=0)


def read_compared_ms(fs: Fs, path: str) -> int:
    """Return when the last comparison of a log directory's broker ended; 0 when that is not known."""
    try:
        return max((int(ended_ms) for (ended_ms,) in _read_lines(fs, path, 1)), default=0)
    except (ValueError, CheckpointError):
        # Then it is compared once too often.
        return 0


def write_compared_ms(fs: Fs, path: str, ended_ms: int) -> None:
    """Replace ``kafkalite-compared``."""
    _write_lines(fs, path, [str(ended_ms)])


def write_registry_zxid(fs: Fs, path: str, zxid: int) -> None:
    """Replace the registry's transaction that a log directory knows of."""
    _write_lines(fs, path, [str(zxid)])


def read_epochs(fs: Fs, path: str) -> list[tuple[int, int]]:
    """Return the (leader epoch, start offset) pairs of a partition; empty when the file is missing."""
    try:
        return [(int(epoch), int(start)) for epoch, start in _read_lines(fs, path, 2)]
    except ValueError:
        raise CheckpointError(f"{path}: an entry is not two numbers") from None


def write_epochs(fs: Fs, path: str, entries: Iterable[tuple[int, int]], *, sync: bool = True) -> None:
    """Replace a partition's leader epochs."""
    _write_lines(fs, path, (f"{epoch} {start}" for epoch, start in entries), sync=sync)


def read_damaged_ranges(fs: Fs, path: str) -> list[tuple[int, int]]:
    """Return the (start, end) pairs of offsets that a log lacks, end exclusive; empty when the file is missing."""
    try:
        return [(int(start), int(end)) for start, end in _lines_of(_read_checked(fs, path), path, 2)]
    except FileNotFoundError:
        return []
    except ValueError:
        raise CheckpointError(f"{path}: an entry is not two numbers") from None


def write_damaged_ranges(fs: Fs, path: str, ranges: Sequence[tuple[int, int]]) -> None:
    """Replace a partition's ``damaged-ranges``; without any range remove it."""
    if not ranges:
        if fs.exists(path):
            fs.unlink(path)
            fs.sync_directory(path.rpartition("/")[0])
        return
    _write_checked(fs, path, (f"{start} {end}" for start, end in ranges))


class SwapGroup(NamedTuple):
    """A cleaned segment, the sizes of its files, and the base offsets of those that it replaces.

    ``end_offset`` is the same in all groups of a cleaning: up to there the log has then been cleaned.
    """

    end_offset: int
    base_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int
    sources: tuple[int, ...]


def read_swap(fs: Fs, path: str) -> list[SwapGroup]:
    """Return the segments of a cleaning that has been committed; empty when the file is missing."""
    groups = []
    for *numbers, sources in _read_lines(fs, path, 6):
        try:
            end_offset, base_offset, log_bytes, index_bytes, time_index_bytes = map(int, numbers)
            replaced = tuple(map(int, sources.split(",")))
        except ValueError:
            raise CheckpointError(f"{path}: {' '.join(numbers)} {sources} is not an entry") from None
        groups.append(SwapGroup(end_offset, base_offset, log_bytes, index_bytes, time_index_bytes, replaced))
    return groups


def write_swap(fs: Fs, path: str, groups: Iterable[SwapGroup]) -> None:
    """Replace a partition's ``cleaner-swap``."""
    _write_lines(fs, path, (" ".join(map(str, (*group[:5], ",".join(map(str, group.sources))))) for group in groups))


def topic_id_text(topic_id: bytes) -> str:
    """Return a topic id as Kafka writes it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def topic_id_from_text(text: str) -> bytes:
    """Return the 16 bytes of a topic id's text. Raises ValueError."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a topic id: {error}") from None
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a topic id: it holds {len(raw)} bytes, not 16")
    return raw


class PartitionMetadata(NamedTuple):
    """Whose log a directory holds. ``partition`` is None where the file does not name it."""

    topic_id: bytes
    partition: int | None

    def may_be_of(self, partition: int) -> bool:
        """Return whether the file names this partition, or none."""
        return self.partition in (None, partition)


def read_partition_metadata(fs: Fs, path: str) -> PartitionMetadata | None:
    """Return what a ``partition.metadata`` file has, None when it is missing."""
    try:
        text = read_small(fs, path).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    head, _, crc = text.partition(_METADATA_CRC_MARK)
    try:
        if fields["version"].strip() != "0":
            raise CheckpointError(f"{path}: version {fields['version']} is not known, only 0 is")
        if crc and crc.strip() != f"{crc32c(head.encode()):08x}":
            raise CheckpointError(f"{path}: its checksum is wrong")
        # Without the checksum a power loss may have taken the end of the number.
        number = fields.get("partition", "").strip() if crc else ""
        return PartitionMetadata(
            topic_id_from_text(fields["topic_id"].strip()), int(number) if number.isdecimal() else None
        )
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: no version and topic_id in it ({error})") from None


def read_topic_id(fs: Fs, path: str) -> bytes | None:
    """Return the topic id of a ``partition.metadata`` file, None when the file is missing."""
    found = read_partition_metadata(fs, path)
    return None if found is None else found.topic_id


def partition_metadata(topic_id: bytes, partition: int) -> bytes:
    """Return what a ``partition.metadata`` file holds."""
    head = f"version: 0\ntopic_id: {topic_id_text(topic_id)}\npartition: {partition}\n"
    return f"{head}{_METADATA_CRC_MARK}{crc32c(head.encode()):08x}\n".encode()


def read_meta(fs: Fs, path: str) -> dict[str, str] | None:
    """Return the properties of a ``meta.properties`` file, None when the file is missing."""
    try:
        text = read_small(fs, path).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    properties = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and not name.startswith("#"):
            properties[name.strip()] = value.strip()
    if "version" not in properties:
        raise CheckpointError(f"{path}: damaged, no version in it; restore it, or remove it to have it written again")
    if properties["version"] not in ("0", "1"):
        raise CheckpointError(f"{path}: version {properties['version']} is not known, only 0 and 1 are")
    return properties


def write_meta(fs: Fs, path: str, properties: Mapping[str, str]) -> None:
    """Replace a ``meta.properties`` file."""
    lines = {"version": "0", **properties}
    replace_file(fs, path, "".join(f"{name}={value}\n" for name, value in lines.items()).encode())
