"""The error for a batch that came too early, because the one before it had just been refused.

An idempotent producer sends up to five batches before it receives the first answer. When the first batch is refused
because in-sync replicas are too few, and they are enough again when the next ones come, these have a gap before them:
OUT_OF_ORDER_SEQUENCE_NUMBER (45), as in Apache Kafka. The Java client sends all of them again then. librdkafka takes a
new producer epoch (confluentinc/librdkafka#4953), and writes again, in this and in every other partition, what it has
not been answered, though it may be in the log. So batches that were sent together are refused together.
"""

from __future__ import annotations

import math
from typing import Final

from spark_kafkalite.errors import KafkaError, NotEnoughReplicas, OutOfOrderSequenceNumber

# Longer than what is sent before an answer comes takes to arrive; a gap that stays is told of when it is over.
SENT_TOGETHER_S: Final = 1.0


class Refusals:
    """When a leader last refused a batch for want of in-sync replicas."""

    __slots__ = ("_last_s",)

    def __init__(self) -> None:
        self._last_s = -math.inf

    def said(self, error: KafkaError, now_s: float) -> KafkaError:
        """Return the answer to an error that a batch has met at this time."""
        if isinstance(error, NotEnoughReplicas):
            self._last_s = now_s
        elif isinstance(error, OutOfOrderSequenceNumber) and now_s - self._last_s < SENT_TOGETHER_S:
            return NotEnoughReplicas(f"a batch before it may have been refused for want of in-sync replicas: {error}")
        return error
