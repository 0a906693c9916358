"""What is known to be missing from one log, or unreadable in it, and what a failed read makes known.

Records that a log had may be gone (a segment is missing or was cut), may be unreadable (EIO, a header that is none), or
may fail their CRC. The broker keeps the ranges of such offsets in ``damaged-ranges`` in the log's directory until they
are healed (cut off, and copied again) or accepted. A read of one is KAFKA_STORAGE_ERROR; reads before and behind it go
on. One ERROR line names the partition, the file and the offsets.

A read that fails has a thread find what is wrong (``loading.survey``), because that reads; then the read is done again.
Passing errors, for want of descriptors or memory, fail that one read and mark nothing as damaged. Bytes that turn out
to be missing while they are sent are suspected, and checked before the next read; so is what a follower refuses, and
what consumers ask for again and again.

The loop owns an object of this, but for :meth:`KnownDamage.add`, :meth:`KnownDamage.survey` and
:meth:`KnownDamage.write`, which any thread may call. Ranges are replaced as a whole, never changed.
"""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import CorruptMessage, KafkaStorageError
from spark_kafkalite.log.damaged_ranges import NONE, Ranges, clipped, merged, without
from spark_kafkalite.log.directories.disk import FailureKind, kind_of, text_of
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.needs_thread import NeedsThread, may_wait
from spark_kafkalite.log.files.small_files import (
    DAMAGED_RANGES_FILE,
    CheckpointError,
    read_damaged_ranges,
    write_damaged_ranges,
)
from spark_kafkalite.log.loading.survey import survey
from spark_kafkalite.log.passed_over import PassedOver
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.layout import MAX_INT64

logger = logging.getLogger(__name__)

# A log that no other broker has keeps no ranges, and is looked at with each read: so often does it say what it finds.
_LINE_EVERY_S: Final = 60.0
# For look-ups by time, which go through segments and do not say in which one something was wrong.
ANYWHERE: Final = -1
# Shared by all logs of which nothing is suspected.
_NO_SUSPECTS: Final[Mapping[int, str]] = {}
# Of reads that were not repeated since.
_MOST_UNEXPLAINED: Final = 64


class DamageListener(Protocol):
    """The log's user, called in the loop."""

    def damage_changed(self) -> None:
        """The ranges are others than before."""

    def damage_reported(self) -> None:
        """A follower has reported what it has, while something is damaged here."""


class KnownDamage:
    """See the module's text."""

    __slots__ = (
        "_clock",
        "_directory",
        "_fs",
        "_generation",
        "_is_changing",
        "_lock",
        "_next_line_s",
        "_segments",
        "_suspects",
        "_told",
        "_topic_partition",
        "_unexplained",
        "_written",
        "is_kept",
        "listener",
        "passed_over",
        "ranges",
        "stage",
        "unknown",
    )

    def __init__(
        self, fs: Fs, directory: str, topic_partition: TopicPartition, segments: Segments, clock: Clock
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._topic_partition = topic_partition
        self._segments = segments
        self._clock = clock
        self.ranges: Ranges = NONE
        # Of which offsets it is not known whether they are damaged, since the file could not be read.
        self.unknown: Ranges = NONE
        # How often they have changed since the log was opened.
        self.stage = 0
        self.listener: DamageListener | None = None
        # What no replica has, and readers pass over.
        self.passed_over = PassedOver(fs, directory, segments)
        # What the listener has been told of, and what the file says; None while nobody knows.
        self._told: Ranges = NONE
        self._written: Ranges | None = NONE
        # Whether other brokers have the records, so that what is damaged here can be healed, and is kept.
        self.is_kept = False
        # Why offsets are to be checked: bytes were missing when they were sent, a follower refuses them, or consumers
        # make no progress with them.
        self._suspects = _NO_SUSPECTS
        # Offsets of reads that have failed, and of which nothing was found to be wrong.
        self._unexplained: dict[int, str] = {}
        # Whether a truncation is under way.
        self._is_changing = False
        # How often ranges were taken away: what a thread found before counts no more.
        self._generation = 0
        self._next_line_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is known, suspected or passed over, so that reads need not ask."""
        return not self.ranges and not self._suspects and self.passed_over.is_empty

    # The file -------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The file's name."""
        return f"{self._directory}/{DAMAGED_RANGES_FILE}"

    def load(self, start_offset: int, end_offset: int) -> None:
        """Read what the last run has known of a log, which may go back to before its start.

        A damaged file shows that something is damaged, and not what: all of the log counts as damaged.
        """
        try:
            self._written = merged(read_damaged_ranges(self._fs, self.path))
            self.ranges = clipped(self._written, 0, end_offset)
            self.stage = int(bool(self.ranges))
        except CheckpointError as error:
            self._written = None
            self.ranges = self.unknown = clipped([(0, MAX_INT64)], start_offset, end_offset)
            self.stage = 1
            logger.error(
                "%s; so it is not known which of the %d offsets of %s are damaged, and all count as damaged. This "
                "replica copies them from its leader, if that has them. If no other replica has them, readers get "
                "what can be read",
                error,
                end_offset - start_offset,
                self._topic_partition,
            )

    def write(self) -> None:
        """Bring the file up to date; may run in any thread. OSError when the disk fails."""
        with self._lock:
            ranges = self.ranges
            if ranges != self._written:
                self._written = None
                write_damaged_ranges(self._fs, self.path, ranges)
                self._written = ranges

    def try_to_write(self) -> None:
        """Bring the file up to date if the disk takes it; may run in any thread."""
        try:
            self.write()
        except OSError as error:
            logger.warning(
                "%s cannot be written: %s; a restart finds what is damaged again, or reads do",
                self.path,
                text_of(error),
            )

    # Changes --------------------------------------------------------------------------------------------------------

    def add(self, start_offset: int, end_offset: int) -> bool:
        """Know of a range from now on; return whether that is news. It is not written yet."""
        with self._lock:
            before = self.ranges
            self.ranges = self.passed_over.left_of(merged([*before, (start_offset, end_offset)]))
            self.stage += self.ranges != before
            return self.ranges != before

    def batch_is_damaged(self, base_offset: int, next_offset: int) -> None:
        """Know of a batch that fails its CRC, in any thread. Where no other broker has it, it is left to its readers,
        which meet it."""
        if self.is_kept:
            self.add(base_offset, next_offset)

    def keep(self, start_offset: int, end_offset: int) -> None:
        """Forget what lies outside of this part of the log, because the records there no longer exist."""
        self._suspects = _NO_SUSPECTS
        self._is_changing = False
        self.passed_over.keep(start_offset, end_offset)
        self.unknown = clipped(self.unknown, start_offset, end_offset)
        self._replace(clipped(self.ranges, start_offset, end_offset))

    def files_change(self) -> None:
        """Believe nothing that is found in the files until :meth:`keep`: a truncation is under way."""
        self._is_changing = True
        self._generation += 1

    def accept(self, start_offset: int = 0, end_offset: int = MAX_INT64) -> None:
        """Forget a range, because no broker has its records."""
        self.unknown = without(self.unknown, [(start_offset, end_offset)])
        self._replace(without(self.ranges, [(start_offset, end_offset)]))

    def log_acceptance(self, ranges: Ranges, why: str) -> None:
        """Write the lines about ranges that are about to be accepted. ``why``: that no replica has them."""
        unknown = tuple(each for each in ranges if clipped(self.unknown, *each))
        lost = tuple(each for each in ranges if each not in unknown)
        if unknown:
            logger.error(
                "%s: it is not known which of the offsets %s are damaged: %s could not be read, and no other replica "
                "is known to have them whole. They count as sound from now on, and readers get what can be read: check "
                "them with kafkalite dump-log %s",
                self._topic_partition,
                _named(unknown),
                self.path,
                self._directory,
            )
        if lost:
            logger.error(
                "%s: offsets %s are lost: %s; readers pass over them from now on",
                self._topic_partition,
                _named(lost),
                why,
            )

    def _replace(self, ranges: Ranges) -> None:
        with self._lock:
            self._generation += 1
            self.stage += self.ranges != ranges
            self.ranges = ranges

    def tell(self) -> None:
        """Notify the listener of a change, once."""
        if self._told != self.ranges:
            self._told = self.ranges
            if self.listener is not None:
                self.listener.damage_changed()

    def reported(self) -> None:
        """Notify the listener that a follower has reported what it has, while something is damaged here."""
        if self.listener is not None and self.ranges:
            self.listener.damage_reported()

    # Reads ----------------------------------------------------------------------------------------------------------

    def check(self, start_offset: int, until_offset: int, end_offset: int) -> int:
        """Return up to where a read from ``start_offset`` may go: ``until_offset``, or the next range that is damaged
        or passed over.

        Raises KafkaStorageError (56) inside of one, and NeedsThread when a thread has to look first.
        """
        while self._suspects:
            left = dict(self._suspects)
            suspect = min(left)
            reason = left.pop(suspect)
            self._suspects = left
            self._look(suspect, end_offset, reason, is_doubt=True)
        self.tell()
        until_offset = self.passed_over.limit(start_offset, until_offset)
        for start, end in self.ranges:
            if start_offset < start:
                return min(until_offset, start)
            if start_offset < end:
                raise KafkaStorageError(
                    f"{self._topic_partition}: offset {start_offset} is among {start} to {end - 1}, which are missing "
                    "or cannot be read in this broker's log"
                )
        return until_offset

    def guarded(self, missing: NeedsThread, offset: int, end_offset: int) -> NeedsThread | KafkaStorageError:
        """Return what a look-up at an offset needs a thread for, prepared to survey an error there. Or return the
        error, when the look-up has failed and no part of the log is damaged."""
        reason = self._unexplained.pop(offset, None)
        if reason is not None:
            return KafkaStorageError(f"cannot read {self._topic_partition} in {self._directory}: {reason}; try again")
        missing.on_error = lambda error: self.survey(offset, end_offset, _text_of(error))
        return missing

    def failed(self, error: Exception, offset: int, end_offset: int) -> KafkaStorageError:
        """Return what a read at an offset that has failed is answered with. Raises NeedsThread when a thread has to
        look first; then the same is read again."""
        reason = _text_of(error)
        text = f"cannot read {self._topic_partition} in {self._directory} at offset {offset}: {reason}"
        passes = isinstance(error, OSError) and kind_of(error) is FailureKind.NO_RESOURCES
        if not passes and self._unexplained.pop(offset, None) is None:
            self._look(offset, end_offset, reason)
            self._unexplained.pop(offset, None)
            self.tell()
        return KafkaStorageError(text)

    def suspect(self, offset: int, reason: str = "its bytes could not be sent") -> None:
        """Have the next read check what follows an offset."""
        self._suspects = {**self._suspects, offset: reason}

    def _look(self, offset: int, end_offset: int, reason: str, *, is_doubt: bool = False) -> None:
        if not may_wait():
            raise Survey(self, offset, end_offset, reason, is_doubt)
        self.survey(offset, end_offset, reason, is_doubt=is_doubt)

    def survey(self, offset: int, end_offset: int, reason: str, *, is_doubt: bool = False) -> None:
        """Find out, in a thread, what cannot be read at an offset and behind it, note it and log it. ANYWHERE: find the
        segments that are shorter than they were, or gone. ``reason``: the error of the read, or with ``is_doubt`` why
        the offset is suspected, though no read of this broker has failed there."""
        if offset != ANYWHERE:
            self._survey_at(offset, end_offset, reason, is_doubt=is_doubt)
            return
        for segment in list(self._segments):
            try:
                segment.check_reaches(segment.size_bytes)
            except (CorruptMessage, OSError) as error:
                self._survey_at(segment.base_offset, end_offset, str(error))
        self._note_unexplained(offset, reason)

    def survey_segments(self, base_offsets: Iterable[int], reason: str) -> None:
        """Find out what cannot be read of whole segments, in a thread, as the cleaner reads them."""
        for base_offset in base_offsets:
            self._survey_at(base_offset, MAX_INT64, reason, is_whole=True)
        self._unexplained.clear()

    def survey_end(self, start_offset: int, end_offset: int) -> None:
        """Read again, in a thread, what may not have reached the disk, from one offset to another. Note and log what
        cannot be read of it."""
        generation = self._generation
        for segment in list(self._segments.from_offset(start_offset)):
            following = self._segments.after(segment)
            until_offset = end_offset if following is None else following.base_offset
            try:
                found, why = survey(segment, until_offset, max(start_offset, segment.base_offset), is_whole=True)
            except OSError as error:
                logger.warning("%s cannot be read again: %s", segment.log_path, text_of(error))
                continue
            if found and not self._is_changing and generation == self._generation:
                self._know(segment, found, why)

    def _note_unexplained(self, offset: int, reason: str) -> None:
        if len(self._unexplained) >= _MOST_UNEXPLAINED:
            self._unexplained.clear()
        self._unexplained[offset] = reason

    def _survey_at(
        self, offset: int, end_offset: int, reason: str, *, is_whole: bool = False, is_doubt: bool = False
    ) -> None:
        generation = self._generation
        segment = self._segments.floor(offset)
        following = self._segments.after(segment)
        try:
            end_offset = end_offset if following is None else following.base_offset
            found, why = survey(segment, end_offset, offset, is_whole=is_whole)
        except OSError as error:
            found, why = NONE, text_of(error)
        if self._is_changing or generation != self._generation or self._segments.floor(offset) is not segment:
            # What was looked at is not the log's any more: it was cut, cleaned or removed.
            found = NONE
        if is_doubt and not found:
            what = f"could not be checked: {why}" if why else "was checked and is sound"
            logger.info(
                "%s: %s from offset %d on %s (%s)", self._topic_partition, segment.log_path, offset, what, reason
            )
            return
        if not any(start <= offset < end for start, end in found):
            # So that the read, which is done again, comes to an end.
            self._note_unexplained(offset, reason)
        if not found:
            logger.warning("%s could not be read at offset %d (%s)", segment.log_path, offset, why or reason)
            return
        self._know(segment, found, why)

    def _know(self, segment: Segment, found: Ranges, why: str) -> None:
        """Note what cannot be read of a segment, and log it."""
        is_news = [self.add(*each) for each in found]
        if not any(is_news):
            return
        now_s = self._clock.monotonic_s()
        if self.is_kept or now_s >= self._next_line_s:
            self._next_line_s = now_s + _LINE_EVERY_S
            logger.error(
                "%s: offsets %s cannot be read from %s: %s; %s",
                self._topic_partition,
                _named(found[:5]),
                segment.log_path,
                why,
                "its other replicas lead, and this one is copied again from them"
                if self.is_kept
                else "no other broker has them: restore the file from a backup while the broker is stopped, or produce "
                f"the records again. Consumers stop before them; those that seek to offset {found[-1][1]} go on. After "
                "a restart readers pass over what is missing. kafkalite dump-log --repair "
                f"{shlex.quote(self._directory)} cuts off damaged batches, and all behind them",
            )
        if self.is_kept:
            self.try_to_write()


class Survey(NeedsThread):
    """A read has failed, or something is suspected; ``work`` finds out what cannot be read."""

    def __init__(self, damage: KnownDamage, offset: int, end_offset: int, reason: str, is_doubt: bool) -> None:
        super().__init__(f"offset {offset} could not be read: {reason}")
        self._damage = damage
        self._asked = offset, end_offset, reason
        self._is_doubt = is_doubt

    def work(self) -> None:
        self._damage.survey(*self._asked, is_doubt=self._is_doubt)


def _named(ranges: Ranges) -> str:
    return ", ".join(f"{start} to {end - 1}" for start, end in ranges)


def _text_of(error: Exception) -> str:
    return text_of(error) if isinstance(error, OSError) else str(error)
