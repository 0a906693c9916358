"""Ways in which records that should be read are gone, and which of them end a read.

``failOnDataLoss`` decides for all causes, ``dataLoss.CAUSE`` for one. Conditions have the names of Spark's JVM
connector, which knows no causes. Pure, but for the log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import LOSS_OFFSET_CHANGED, SparkConditionError
from spark_kafkalite.spark.reading.topic_id import topic_id_text

_LOG = logging.getLogger("spark_kafkalite.spark")


class LossCause(Enum):
    """Why records are gone. The value is the name in the option ``dataLoss.NAME``."""

    # Retention, or a deletion of records, has moved the first offset of a log beyond what was to be read.
    AGED_OUT = "agedOut"
    # A topic was deleted, and is there again under the same name.
    RECREATED = "recreated"
    DELETED = "deleted"
    # A topic is there without partitions that it had, or whose first offset nobody tells.
    PARTITION_GONE = "partitionGone"
    # The checkpoint goes on in topics or partitions that the options do not name any more. Nothing is lost yet.
    UNSUBSCRIBED = "unsubscribed"
    # A log ends below what was read: it was truncated, or the topic was made again without anybody having seen it.
    END_WENT_BACK = "endWentBack"

    @property
    def option(self) -> str:
        """The option that decides for this cause alone."""
        return f"dataLoss.{self.value}"


@dataclass(frozen=True, slots=True)
class DataLoss:
    """One loss. ``condition`` is the JVM connector's name for it."""

    condition: str
    cause: LossCause
    text: str
    # What the option does, in an error that names it; by default the query goes on without what is lost.
    remedy: str = "restore it, or set {option} to go on without it"


def recreated(topic: str, before: bytes, now: bytes) -> DataLoss:
    """Return the loss of a topic that had one id, and has another one now."""
    return DataLoss(
        LOSS_OFFSET_CHANGED,
        LossCause.RECREATED,
        f"the topic {topic} was deleted and created again: the query has read the topic with id "
        f"{topic_id_text(before)}, and its id now is {topic_id_text(now)}",
        "to accept the new topic and read it from its first offset, set {option}; it may be removed after one batch",
    )


def gone_by_cause(
    before: Iterable[TopicPartition], now: Collection[TopicPartition]
) -> Iterator[tuple[LossCause, list[TopicPartition]]]:
    """Yield the partitions that are gone, sorted: those whose topic is gone, and those of topics that exist."""
    topics = {tp.topic for tp in now}
    gone = sorted(tp for tp in before if tp not in now)
    for cause, is_there in ((LossCause.DELETED, False), (LossCause.PARTITION_GONE, True)):
        if those := [tp for tp in gone if (tp.topic in topics) is is_there]:
            yield cause, those


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """Which causes end a read; ``fails_of`` has the causes with an option of their own."""

    fails_by_default: bool
    fails_of: Mapping[LossCause, bool]

    def fails(self, cause: LossCause) -> bool:
        """Whether a loss of this cause ends the read."""
        return self.fails_of.get(cause, self.fails_by_default)

    def is_decided(self, cause: LossCause) -> bool:
        """Whether the cause has an option of its own."""
        return cause in self.fails_of

    def said(self, cause: LossCause) -> str:
        """Return the option that decides, with its value."""
        if self.is_decided(cause):
            return f"{cause.option}={'fail' if self.fails_of[cause] else 'warn'}"
        return f"failOnDataLoss={str(self.fails_by_default).lower()}"

    def remedy(self, causes: Iterable[LossCause]) -> str:
        """Return what to set to go on all the same."""
        failing = dict.fromkeys(cause for cause in causes if self.fails(cause))
        alone = " and ".join(f"{cause.option}=warn" for cause in failing)
        return alone if any(map(self.is_decided, failing)) else f"failOnDataLoss=false (or {alone})"

    def meet(self, loss: DataLoss, note: str = "") -> None:
        """Raise the error of a read that must not lose data so, or warn; ``note`` ends the warning."""
        if self.fails(loss.cause):
            raise SparkConditionError(
                loss.condition,
                f"{self.said(loss.cause)}: {loss.text}; {loss.remedy.format(option=self.remedy([loss.cause]))}",
            )
        _LOG.warning("[%s] %s: %s; going on%s", loss.condition, self.said(loss.cause), loss.text, note)
