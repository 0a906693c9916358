"""Reading as a member of a consumer group, for ``kafkalite consume --group``.

What has been printed and flushed is committed, nothing else: about once a second, before partitions are given away,
and at the end. So a run that is interrupted, killed, or whose reader has gone away has shown everything that is
committed; the next one may show again what was printed last (at least once). With ``enable.auto.commit=false`` nothing
is committed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final, Self

from spark_kafkalite.cli.output import warn
from spark_kafkalite.client.consume.consumer import Consumer
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import CommittedOffset, Record, TopicPartition

_COMMIT_EVERY_S: Final = 1.0
_POLL_MS: Final = 500
_POLL_RECORDS: Final = 5_000


@contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Have Ctrl-C take effect at the end of the block, not between printing and noting what was printed.

    A second one takes effect at once: the block may wait for a reader that has stopped reading.
    """
    before = signal.getsignal(signal.SIGINT)
    seen = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        # None: whoever started Python in this process has a handler that Python cannot name.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
    if seen:
        raise KeyboardInterrupt


class GroupReader:
    """One membership and the offsets that it has printed. Use it as a context manager."""

    def __init__(self, settings: Mapping[str, object], *, commits: bool) -> None:
        """``settings`` are a consumer's, with ``group.id``; without ``commits`` nothing is committed."""
        # Auto commit would take what was polled for what was printed.
        self._consumer = Consumer({**settings, "enable.auto.commit": "false"})
        self._commits = commits
        self._printed: dict[TopicPartition, CommittedOffset] = {}
        self._committed_s = time.monotonic()
        self._begun: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}

    def subscribe(self, topics: Iterable[str] | None, pattern: str | None) -> None:
        """Join the group for these topics, or for those whose whole name matches the pattern."""
        self._consumer.subscribe(topics, pattern=pattern, on_revoked=self._revoked, on_lost=self._lost)

    def run(
        self,
        show: Callable[[list[Record]], None],
        *,
        max_messages: int | None,
        timeout_ms: int | None,
        until_end: bool,
    ) -> None:
        """Have records shown until their number, the ends of our partitions, or a silence of ``timeout_ms``."""
        left = max_messages
        heard_s = time.monotonic()
        while left is None or left > 0:
            wait_ms = float(_POLL_MS)
            if timeout_ms is not None:
                wait_ms = min(wait_ms, timeout_ms - (time.monotonic() - heard_s) * 1000)
            records = self._consumer.poll(max(0.0, wait_ms), min(left or _POLL_RECORDS, _POLL_RECORDS))
            if records:
                heard_s = time.monotonic()
                left = None if left is None else left - len(records)
                with interrupted_afterwards():
                    show(records)
                    for each in records:
                        self._printed[TopicPartition(each.topic, each.partition)] = CommittedOffset(each.offset + 1)
            self._note_where_new_ones_begin()
            if time.monotonic() - self._committed_s >= _COMMIT_EVERY_S:
                self._commit()
            if until_end and self._at_the_ends():
                return
            if not records and timeout_ms is not None and (time.monotonic() - heard_s) * 1000 >= timeout_ms:
                return

    def _note_where_new_ones_begin(self) -> None:
        """Have a place committed for partitions without records too.

        Else a group that begins at the end would, in its next run, pass over what arrived between the two.
        """
        for each in self._consumer.assignment() - self._begun:
            self._printed.setdefault(each, CommittedOffset(self._consumer.position(each)))
            self._begun.add(each)

    def _at_the_ends(self) -> bool:
        """Whether all that our partitions held, when they became ours, has been read."""
        assigned = self._consumer.assignment()
        new = assigned - self._ends.keys()
        if new:
            self._ends.update(self._consumer.end_offsets(new))
        # A member for whom no partition is left has nothing to wait for, once the group has dealt them out.
        joined = self._consumer.generation_id >= 0
        return joined and all(self._consumer.position(each) >= self._ends[each] for each in assigned)

    def _revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self._commit()
        self._lost(partitions)

    def _lost(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._printed.pop(each, None)
            self._ends.pop(each, None)
            self._begun.discard(each)

    def _commit(self) -> None:
        self._committed_s = time.monotonic()
        printed, self._printed = self._printed, {}
        if not self._commits or not printed:
            return
        try:
            self._consumer.commit(printed)
        except KafkaliteError as error:
            warn(f"what was printed last is not committed and will be read again: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._commit()
        finally:
            self._consumer.close()
