"""Cutting the end of a log, or all of it: what a follower does whose leader's log is another.

Answers that are being sent of what is cut are called off. The two that go in steps leave the log to a thread in
between: it is not usable then, and is never read. KafkaStorageError (56) comes out when the disk fails, and when it has
no room for the recovery point, which goes back before anything is cut: nothing has changed then. The files that follow
the cut are written with the next flush if there is no room for them; a start before that finds out what they lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_kafkalite.errors import CorruptMessage, KafkaStorageError
from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.steps import Piece, Steps, run_steps
from spark_kafkalite.model import Offset


def truncate_to(log: PartitionLog, offset: int) -> None:
    """Remove everything from ``offset`` on; from the start of its batch when it lies inside one."""
    run_steps(truncation_to(log, offset))


def truncate_fully(log: PartitionLog, start_offset: int) -> None:
    """Remove everything, producers and leader epochs too, and go on at ``start_offset``, which may lie below the log
    start. On the disk when this returns."""
    run_steps(full_truncation(log, start_offset))


def truncation_to(log: PartitionLog, offset: int) -> Steps[None]:
    """Do what :func:`truncate_to` does in steps."""
    yield from log.readiness.steps()
    if offset >= log.log_end_offset:
        return
    if offset < log.segments.first.base_offset:
        yield from full_truncation(log, offset)
        return
    with _truncating(log):
        found = None
        if log.local.begins_damage(offset):
            yield (check := Piece(lambda: log.local.check_cut(offset)))
            check.result()
        else:
            yield (look := Piece(lambda: log.segments.floor(offset).find(offset)))
            found = look.result()
        end = offset if found is None else min(offset, found.header.base_offset)
        log.cleaned_until_offset = min(log.cleaned_until_offset, end)
        yield from log.local.truncate(found, end)
        yield (rest := Piece(lambda: _truncate_rest(log, end)))
        rest.result()
        log.log_start_offset = Offset(min(log.log_start_offset, end))
        yield from _end_truncation(log)


def full_truncation(log: PartitionLog, start_offset: int) -> Steps[None]:
    """Do what :func:`truncate_fully` does in steps."""
    yield from log.readiness.steps()
    with _truncating(log):
        log.cleaned_until_offset = 0
        yield from log.local.truncate_fully(start_offset)
        yield (rest := Piece(lambda: _forget_rest(log, start_offset)))
        rest.result()
        log.log_start_offset = Offset(start_offset)
        yield from _end_truncation(log)


@contextmanager
def _truncating(log: PartitionLog) -> Iterator[None]:
    if log.disk.is_read_only:
        raise KafkaStorageError(log.disk.refusal)
    log.local.truncating = True
    # It was said of another log.
    log.unconfirmed_start_offset = 0
    try:
        if log.swap is not None:
            log.swap.settle()
        yield
    except OSError as error:
        raise log.local.fatal_error("truncate", error) from error
    except CorruptMessage as error:
        raise KafkaStorageError(f"the log of {log.topic_partition} cannot be cut back: {error}") from error
    finally:
        log.local.truncating = False


def _truncate_rest(log: PartitionLog, end_offset: int) -> None:
    log.producers.truncate_to(end_offset)
    if log.epochs.truncate_from_end(end_offset):
        _write_if_room(log, log.epochs.write)


def _forget_rest(log: PartitionLog, start_offset: int) -> None:
    if log.epochs.truncate_from_end(0):
        _write_if_room(log, log.epochs.write)
    log.producers.truncate_fully(start_offset)


def _end_truncation(log: PartitionLog) -> Steps[None]:
    note_start = log.host.note_truncated(log)
    yield (start := Piece(lambda: _write_if_room(log, note_start)))
    start.result()
    damage = log.local.known_damage
    damage.keep(0, log.log_end_offset)
    # Last: what is cut off must be known to be missing until it is gone.
    yield (known := Piece(lambda: _write_if_room(log, damage.write)))
    known.result()
    damage.tell()


def _write_if_room(log: PartitionLog, write: Callable[[], None]) -> None:
    try:
        log.disk.persist(write)
    except OSError as error:
        if kind_of(error) is not FailureKind.NO_ROOM:
            raise
