"""The files of a streaming query's checkpoint: which batches are planned and finished, and each source's offsets.

This module reads the two logs of Spark's checkpoint layout. Spark writes ``offsets/N`` before batch N runs, and
``commits/N`` after the sink has committed it. A file of the offset log has these lines:

- ``v1``.
- The batch's metadata as JSON.
- One line for each source, in the order of the query's plan: the offset before which the batch ends, or ``-`` if the
  source has no offset yet.

So a batch begins where the previous batch ends. On a local file system each file ``N`` has a checksum file ``.N.crc``.

A source whose offset has the form ``{"topic":{"0":9}}`` is Kafka's or this package's. The module reports other sources
and does not change their offsets.
Source: org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog, CommitLog.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.reading.offset_json import from_json, to_json
from spark_kafkalite.spark.reading.offset_ranges import Offsets

VERSION: Final = "v1"
_NO_OFFSET: Final = "-"
_START_ANEW: Final = (
    "restore it from a copy, or start the query with a new checkpointLocation from the offsets of an earlier batch "
    "('kafkalite offsets export --checkpoint DIR --batch N' prints them)"
)


class QueryCheckpointError(KafkaliteError):
    """A checkpoint is damaged or unsuitable, or must not be changed. The text names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The offset at which one source's part of a batch ends, ``text`` in Spark's form.

    ``offsets`` None: the source is neither Kafka's nor this package's, or has no offset yet. ``initial``: the initial
    offsets, which this package's source stores with the first batch of a query.
    """

    text: str
    offsets: Offsets | None = None
    initial: Offsets | None = None

    @classmethod
    def parse(cls, text: str) -> SourceOffset:
        """Return the offset in a line of the offset log. A line in another form than Kafka's stays unchanged."""
        try:
            offsets, initial = from_json(json.loads(text))
        except (ValueError, RecursionError, SparkConditionError):
            return cls(text)
        return cls(text, offsets, initial)

    @classmethod
    def of(cls, offsets: Offsets, initial: Offsets | None = None) -> SourceOffset:
        """Return offsets with the text that Spark stores for this package's source. Equal offsets have equal texts."""
        return cls(json.dumps(to_json(offsets, initial)), offsets, initial)


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One file of the offset log."""

    metadata: str
    sources: tuple[SourceOffset, ...]

    def to_text(self) -> str:
        """Return the file's content as Spark writes it, without a newline after the last line."""
        return "\n".join((VERSION, self.metadata, *(each.text for each in self.sources)))


def offsets_path(batch_id: int) -> str:
    """Return the path of a batch's offsets in a checkpoint."""
    return f"offsets/{batch_id}"


def commit_path(batch_id: int) -> str:
    """Return the path of the file that marks a batch as finished."""
    return f"commits/{batch_id}"


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """The state of a checkpoint.

    ``committed`` is the last finished batch, None if no batch is finished. ``planned`` is the next batch if it is
    planned and not finished, otherwise None. When the query starts, it runs this batch first.
    """

    files: Files
    query_id: str | None
    committed: int | None
    planned: int | None
    has_state: bool

    @classmethod
    def open(cls, files: Files) -> QueryCheckpoint:
        """Read a directory. Raises QueryCheckpointError if it is not a checkpoint, or if it lacks batches."""
        batches, commits = batch_ids(files, "offsets"), batch_ids(files, "commits")
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
                f"{files.root}/{offsets_path(committed)}: does not exist, but {commit_path(committed)} marks the batch "
                f"as finished; {_START_ANEW}"
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
        """Return one batch. Raises QueryCheckpointError if it does not exist or does not have Spark's form."""
        path = offsets_path(batch_id)
        where = f"{self.files.root}/{path}"
        try:
            text = self.files.read(path)
        except FileNotFoundError:
            there = batch_ids(self.files, "offsets")
            raise QueryCheckpointError(
                f"{where}: there is no such batch; the checkpoint holds {min(there)} to {max(there)}"
            ) from None
        except UnicodeDecodeError:
            raise QueryCheckpointError(f"{where}: damaged, it is not UTF-8 text; {_START_ANEW}") from None
        # Not splitlines: offsets of other sources may contain other line breaks.
        version, *lines = text.rstrip("\n").split("\n")
        if version == "v2":
            raise QueryCheckpointError(
                f"{where}: written in version v2 of Spark's offset log, which has names in the place of the sources' "
                "order; only v1, the default, is supported"
            )
        cut_off = any(each.startswith("{") and not _is_object(each) for each in lines)
        if version != VERSION or len(lines) < 2 or not lines[0].startswith("{") or cut_off:
            shown = text[:40] + ("..." if len(text) > 40 else "")
            raise QueryCheckpointError(
                f"{where}: damaged, {shown!r} is not v1, a line of metadata, and a line for each source; {_START_ANEW}"
            )
        return LoggedBatch(lines[0], tuple(SourceOffset.parse(each) for each in lines[1:]))

    def next_watermark_ms(self, batch_id: int) -> int:
        """Return the query's watermark after a finished batch, in ms since the epoch; 0 if it has no watermark."""
        where = f"{self.files.root}/{commit_path(batch_id)}"
        try:
            # The version does not matter here: v2 and v3 only add fields to v1.
            found = json.loads(self.files.read(commit_path(batch_id)).split("\n")[1])
            return int(found.get("nextBatchWatermarkMs", 0))
        except (ValueError, IndexError, AttributeError, TypeError):
            raise QueryCheckpointError(
                f"{where}: damaged, it has no line of JSON behind its version; {_START_ANEW}"
            ) from None

    def last_changed_ms(self) -> int:
        """Return when a file of the two logs was last written, in ms since the epoch."""
        paths = [f"{log}/{each}" for log in ("offsets", "commits") for each in batch_ids(self.files, log)]
        return max(self.files.modified_ms(each) or 0 for each in paths)


def batch_ids(files: Files, log: str) -> list[int]:
    """Return the batches that have a file in a log, ``offsets`` or ``commits``, in no order."""
    # Checksums and unfinished files have other names.
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
