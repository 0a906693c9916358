"""Logs that are set aside because the registry does not have their topic, and that are used again when it has it again.

The directory of such a log has the name of all that are set aside (``-stray``), and the file ``awaits-topic`` in it:
JSON, ``{"version":1,"log":"TOPIC-PARTITION","log_start_offset":N}``, because a directory's name may be cut, and the
checkpoint of log starts forgets the log. The topic's id is in ``partition.metadata``. Without that, or where the file
cannot be read (a power cut may have emptied it), the log stays aside, and an operator can give it its name back.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from spark_kafkalite.log.files.fs import Fs, replace_file
from spark_kafkalite.log.files.small_files import PARTITION_METADATA_FILE, CheckpointError, read_small, read_topic_id
from spark_kafkalite.model import TopicPartition

AWAITS_TOPIC_FILE: Final = "awaits-topic"
STRAY_SUFFIX: Final = "-stray"


class AwaitingLog(NamedTuple):
    """A log that is set aside until its topic is in the registry again."""

    key: TopicPartition
    topic_id: bytes
    log_dir: str
    name: str
    log_start_offset: int

    @property
    def path(self) -> str:
        """The directory in which its files are now."""
        return f"{self.log_dir}/{self.name}"


def note_awaiting(fs: Fs, directory: str, key: TopicPartition, log_start_offset: int) -> None:
    """Mark a log's directory, before it is renamed. OSError when the disk fails."""
    fields = {"version": 1, "log": str(key), "log_start_offset": log_start_offset}
    replace_file(fs, f"{directory}/{AWAITS_TOPIC_FILE}", json.dumps(fields).encode(), sync=False)


def read_awaiting(fs: Fs, log_dir: str, name: str) -> AwaitingLog | None:
    """Return the log that awaits its topic in a directory, None where there is none. OSError when the disk fails."""
    path = f"{log_dir}/{name}/{AWAITS_TOPIC_FILE}"
    if not fs.exists(path):
        return None
    try:
        topic_id = read_topic_id(fs, f"{log_dir}/{name}/{PARTITION_METADATA_FILE}")
        fields = json.loads(read_small(fs, path))
        topic, _, number = str(fields["log"]).rpartition("-")
        key = TopicPartition(topic, int(number))
        return None if topic_id is None else AwaitingLog(key, topic_id, log_dir, name, int(fields["log_start_offset"]))
    except (CheckpointError, ValueError, KeyError, TypeError, RecursionError):
        return None


def awaiting_in(fs: Fs, log_dir: str) -> list[AwaitingLog]:
    """Return the logs in a log directory that await their topics. OSError when the disk fails."""
    names = [each.name for each in fs.entries(log_dir) if each.is_directory and each.name.endswith(STRAY_SUFFIX)]
    return [found for name in sorted(names) if (found := read_awaiting(fs, log_dir, name)) is not None]
