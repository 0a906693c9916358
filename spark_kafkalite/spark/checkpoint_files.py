"""A streaming query's checkpoint as files: which batches were planned and finished, and each source's offsets in them.

Spark's layout, of which this reads the two logs: ``offsets/N`` is written before batch N runs, ``commits/N`` once its
sink has it. A batch of the offset log is lines of text: ``v1``, the batch's metadata as JSON, then one line a source,
in the order of the query's plan, with the offset before which the batch ends (``-``: none yet). So a batch begins where
the one before it ends. On a local file system each file ``N`` has its checksum beside it, in ``.N.crc``.

A source is Kafka's or ours when its offset has that form, ``{"topic":{"0":9}}``; all others are named and left alone.
Source: org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog, CommitLog.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.jobs.destination.files import Files
from spark_kafkalite.spark.offset_ranges import Offsets, from_json, to_json

_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"
_START_ANEW: Final = (
    "restore it from a copy, or start the query with a new checkpointLocation from the offsets of an earlier batch "
    "('kafkalite offsets export --checkpoint DIR --batch N' prints them)"
)


class QueryCheckpointError(KafkaliteError):
    """A checkpoint is not what it should be, or not to be changed; the text names file and remedy."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Where one source's part of a batch ends. ``offsets`` None: the source is not Kafka's, or has no offset yet;
    ``initial`` are those that the first batch of a query of ours carries."""

    text: str
    offsets: Offsets | None = None
    initial: Offsets | None = None

    @classmethod
    def parse(cls, text: str) -> SourceOffset:
        """Return what a line of the offset log says; a line in a form that is not Kafka's is kept as it is."""
        try:
            offsets, initial = from_json(json.loads(text))
        except (ValueError, RecursionError, SparkConditionError):
            return cls(text)
        return cls(text, offsets, initial)

    @classmethod
    def of(cls, offsets: Offsets, initial: Offsets | None = None) -> SourceOffset:
        """Return offsets in the text that Spark stores for our source: an offset that does not move is the same."""
        return cls(json.dumps(to_json(offsets, initial)), offsets, initial)


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One file of the offset log."""

    metadata: str
    sources: tuple[SourceOffset, ...]

    def to_text(self) -> str:
        """Return the file's content, as Spark writes it: without an end of line behind the last one."""
        return "\n".join((_VERSION, self.metadata, *(each.text for each in self.sources)))


def offsets_path(batch_id: int) -> str:
    """Return where a batch's offsets lie in a checkpoint."""
    return f"offsets/{batch_id}"


def commit_path(batch_id: int) -> str:
    """Return where it says that a batch is finished."""
    return f"commits/{batch_id}"


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """A checkpoint as it was found.

    ``committed`` is the last finished batch, None before the first one is. ``planned`` is the batch after it where that
    was planned and not finished: a query that starts runs it first.
    """

    files: Files
    query_id: str | None
    committed: int | None
    planned: int | None
    has_state: bool

    @classmethod
    def open(cls, files: Files) -> QueryCheckpoint:
        """Look at a directory. Raises QueryCheckpointError for no checkpoint, and for one that lacks batches."""
        batches, commits = _ids(files, "offsets"), _ids(files, "commits")
        if not files.exists("offsets"):
            raise QueryCheckpointError(
                f"{files.root}: no checkpoint of a streaming query, it has no directory offsets; give the query's "
                "checkpointLocation"
            )
        if not batches:
            raise QueryCheckpointError(f"{files.root}/offsets: the query has planned no batch yet; start it first")
        committed = max(commits, default=None)
        last = max(batches)
        if committed is not None and committed not in batches:
            raise QueryCheckpointError(
                f"{files.root}/{offsets_path(committed)}: not there, but {commit_path(committed)} says that the batch "
                f"is finished; {_START_ANEW}"
            )
        planned = None if last == committed else last
        if planned is not None and planned != (0 if committed is None else committed + 1):
            raise QueryCheckpointError(
                f"{files.root}/{offsets_path(planned)}: more than one batch is planned and not finished (the last "
                f"finished one is {committed}), as with asynchronous progress tracking; "
                "run the query once with asyncProgressTrackingEnabled=false"
            )
        return cls(files, _query_id(files), committed, planned, bool(files.names("state")))

    def batch(self, batch_id: int) -> LoggedBatch:
        """Return one batch. Raises QueryCheckpointError for one that is not there, or not in Spark's form."""
        path = offsets_path(batch_id)
        where = f"{self.files.root}/{path}"
        try:
            text = self.files.read(path)
        except FileNotFoundError:
            there = _ids(self.files, "offsets")
            raise QueryCheckpointError(
                f"{where}: there is no such batch; the checkpoint holds {min(there)} to {max(there)}"
            ) from None
        except UnicodeDecodeError:
            raise QueryCheckpointError(f"{where}: damaged, it is not UTF-8 text; {_START_ANEW}") from None
        # Not splitlines: a topic's name is plain, but other sources may have any character in their offsets.
        version, *lines = text.rstrip("\n").split("\n")
        if version == "v2":
            raise QueryCheckpointError(
                f"{where}: written in version v2 of Spark's offset log, which has names in the place of the sources' "
                "order; only v1, the default, is supported"
            )
        cut_off = any(each.startswith("{") and not _is_object(each) for each in lines)
        if version != _VERSION or len(lines) < 2 or not lines[0].startswith("{") or cut_off:
            shown = text[:40] + ("..." if len(text) > 40 else "")
            raise QueryCheckpointError(
                f"{where}: damaged, {shown!r} is not v1, a line of metadata, and a line for each source; {_START_ANEW}"
            )
        return LoggedBatch(lines[0], tuple(SourceOffset.parse(each) for each in lines[1:]))

    def next_watermark_ms(self, batch_id: int) -> int:
        """Return the watermark with which a finished batch left the query, in ms since the epoch; 0 without one."""
        where = f"{self.files.root}/{commit_path(batch_id)}"
        try:
            # Its version does not matter here: v2 and v3 add to what v1 says.
            found = json.loads(self.files.read(commit_path(batch_id)).split("\n")[1])
            return int(found.get("nextBatchWatermarkMs", 0))
        except (ValueError, IndexError, AttributeError, TypeError):
            raise QueryCheckpointError(
                f"{where}: damaged, it has no line of JSON behind its version; {_START_ANEW}"
            ) from None

    def last_changed_ms(self) -> int:
        """Return when one of its logs' files was last written, in ms since the epoch."""
        paths = [f"{log}/{each}" for log in ("offsets", "commits") for each in _ids(self.files, log)]
        return max(self.files.modified_ms(each) or 0 for each in paths)


def _ids(files: Files, log: str) -> list[int]:
    # Checksums, and what Spark has not finished writing, have other names.
    return [int(each) for each in files.names(log) if each.isascii() and each.isdecimal()]


def _query_id(files: Files) -> str | None:
    try:
        found = json.loads(files.read("metadata"))
        return str(found["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
