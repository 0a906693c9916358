"""Up to which offset a partition's records are committed, visible and acknowledged. Pure rules.

All bounds are exclusive. The log end and the flushed end are the log's, and given to each question:

- ``high_watermark``: everything below it is in the log of every in-sync replica. It never goes back, but in a
  truncation to below it.
- the remembered high watermark: what this replica knows to have been committed, also where a power loss has taken it
  from its log. It is the checkpoint's value until there is news of a leader.
- the visible end: everything below it is shown to consumers, through every API. It is the high watermark, and with
  ``visibility.policy=flushed`` not more than what this replica has flushed (the flushed offset is taken before fsync is
  called, so nothing that fsync may have missed is counted). What had been shown before the policy became ``flushed``
  stays shown: a bound that went back would look like lost data to a client that remembers the old one.
- the acknowledged end: a produce is answered when all of it lies below. ``acks=all`` waits for the high watermark,
  ``acks=1`` for the log end, and with ``flush.before.ack`` (or ``flush.messages=1``) both wait for the flush, too.
"""

from __future__ import annotations

from spark_kafkalite.log.topic_config import TopicConfig

ACKS_ALL = -1


class Bounds:
    """The bounds of one replica, and the settings that they depend on."""

    __slots__ = ("_remembered", "_shown_end_offset", "acknowledges_flushed", "high_watermark", "shows_flushed")

    def __init__(self, high_watermark: int, config: TopicConfig, checkpointed: int = 0) -> None:
        """``checkpointed``: the high watermark that was written down; the log may end below it."""
        self.high_watermark = high_watermark
        self._remembered = checkpointed
        # Where the visible end was when visibility.policy became ``flushed``.
        self._shown_end_offset = 0
        self._take_up(config)

    def obey(self, config: TopicConfig, flushed_end_offset: int) -> None:
        """Apply other settings from now on."""
        shown_end_offset = self.visible_end_offset(flushed_end_offset)
        self._take_up(config)
        self._shown_end_offset = shown_end_offset if self.shows_flushed else 0

    def _take_up(self, config: TopicConfig) -> None:
        self.shows_flushed = config.visibility_policy == "flushed"
        self.acknowledges_flushed = config.flush_before_ack or config.flush_messages == 1

    def visible_end_offset(self, flushed_end_offset: int) -> int:
        """Return the first offset that consumers may not see."""
        if self.shows_flushed:
            return min(self.high_watermark, max(flushed_end_offset, self._shown_end_offset))
        return self.high_watermark

    def stable_end_offset(self, flushed_end_offset: int) -> int:
        """Return the first offset that readers of committed transactions may not see, the last stable offset: without
        transactions the visible end."""
        return self.visible_end_offset(flushed_end_offset)

    def acknowledged_end_offset(self, acks: int, log_end_offset: int, flushed_end_offset: int) -> int:
        """Return the first offset that a produce with these acks is not answered for yet."""
        end = self.high_watermark if acks == ACKS_ALL else log_end_offset
        return min(end, flushed_end_offset) if self.acknowledges_flushed else end

    def commit(self, end_offset: int) -> bool:
        """Raise the high watermark to ``end_offset``, if that is more; return whether it moved."""
        if end_offset <= self.high_watermark:
            return False
        self.high_watermark = end_offset
        self._remembered = 0
        return True

    def truncated(self, log_end_offset: int) -> None:
        """Take the high watermark back to the end of a log that has been cut below it."""
        self.high_watermark = min(self.high_watermark, log_end_offset)
        self._remembered = 0

    @property
    def remembered_high_watermark(self) -> int:
        """The high watermark, or a larger one that this replica had before its log lost its end."""
        return max(self._remembered, self.high_watermark)

    def forget_shown(self) -> None:
        """Have another leader's records shown by the policy alone: what this broker has shown does not apply to
        them."""
        self._shown_end_offset = 0


def required_isr(min_insync_replicas: int, replica_count: int) -> int:
    """Return how many in-sync replicas a commit takes: ``min.insync.replicas``, but not more than there are, without
    those that a reassignment is adding (``PartitionState.settled_count``)."""
    return min(min_insync_replicas, max(replica_count, 1))
