"""The state of one partition that a consumer reads: its position, what was fetched of it, and its errors.

Plain state without a lock of its own: its users hold :attr:`.read_ahead.ReadAhead.lock`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from spark_kafkalite.client.consume.fetched import FetchedBatches
from spark_kafkalite.client.network.retry import TO_BE_MENDED
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition

# A place to start from, beside timestamps and the special ones of ListOffsets: what the group has committed.
COMMITTED: Final = -1_000
# How often what cannot be read is fetched again before polls raise its error.
_MOST_REFETCHES: Final = 5


class TopicPartitionState:
    """One assigned partition."""

    __slots__ = (
        "batch_end",
        "buffered",
        "buffered_bytes",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "out_of_range_logged_s",
        "paused",
        "position",
        "reset_to",
        "retry_at_s",
        "topic_partition",
        "unreadable_offset",
        "unreadable_times",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        # Next offset the user gets; None while it is not known yet.
        self.position: int | None = None
        # Of the last record before the position; -1 when it is not known.
        self.leader_epoch = NO_LEADER_EPOCH
        self.fetch_offset = 0
        # Of the last record before the fetch offset, as far as it is known.
        self.fetch_epoch = NO_LEADER_EPOCH
        # What to look the position up by: a timestamp, or EARLIEST or LATEST.
        self.reset_to: int | None = None
        self.buffered: deque[FetchedBatches] = deque()
        self.buffered_bytes = 0
        self.generation = 0
        self.paused = False
        self.error: KafkaliteError | None = None
        self.retry_at_s = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        # When it was logged that its offset is not in the log; None once a fetch has succeeded.
        self.out_of_range_logged_s: float | None = None
        # Where something could not be read, and how often it has been fetched again.
        self.unreadable_offset = -1
        self.unreadable_times = 0
        # Where a batch ends, if the next one could not be read; that one begins there, or later.
        self.batch_end = -1

    def move_to(self, position: int | None, reset_to: int | None = None, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Go on from ``position``, or from where ``reset_to`` will be found to lie; what was fetched is dropped."""
        self.generation += 1
        self.position = position
        self.leader_epoch = leader_epoch
        self.reset_to = reset_to
        self.fetch_offset = position or 0
        self.fetch_epoch = leader_epoch
        self.error = None
        self.retry_at_s = 0.0
        self.unreadable_offset = -1
        self.drop_buffered()

    def fail_at(self, position: int, error: KafkaliteError) -> None:
        """Have polls raise an error of what was fetched at ``position``, which :meth:`go_back_to` is called for."""
        self.error = error
        self.go_back_to(position)

    def go_back_to(self, position: int) -> None:
        """Fetch from ``position`` on next. What lies behind is dropped, and also what is on its way: a poll that read
        on there would skip what cannot be read."""
        self.fetch_offset, self.fetch_epoch = position, NO_LEADER_EPOCH
        self.drop_buffered()

    def count_refetch(self, position: int) -> int:
        """Count that what cannot be read at ``position`` is fetched again; return how often it was, 0 when that was
        often enough."""
        if self.unreadable_offset != position:
            self.unreadable_offset, self.unreadable_times = position, 0
        self.unreadable_times += 1
        return self.unreadable_times if self.unreadable_times <= _MOST_REFETCHES else 0

    def take_error(self) -> KafkaliteError | None:
        """Return why there is nothing to read; an error that may be fixed meanwhile is forgotten, and tried again."""
        error = self.error
        if isinstance(error, TO_BE_MENDED):
            self.error = None
        return error

    def drop_buffered(self) -> None:
        """Forget what was fetched and not taken."""
        for piece in self.buffered:
            piece.release()
        self.buffered.clear()
        self.buffered_bytes = 0
