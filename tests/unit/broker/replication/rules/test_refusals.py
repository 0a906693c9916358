"""What was sent together is refused together; a gap that stays is told of."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.replication.rules.refusals import SENT_TOGETHER_S, Refusals
from spark_kafkalite.errors import (
    InvalidProducerEpoch,
    KafkaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)

GAP = OutOfOrderSequenceNumber("sequence 7 follows 5")


def test_a_gap_is_a_gap_where_nothing_was_refused() -> None:
    assert Refusals().said(GAP, 0.0) is GAP


@pytest.mark.parametrize(
    ("later_s", "is_refused"), [(0.0, True), (SENT_TOGETHER_S - 0.01, True), (SENT_TOGETHER_S, False)]
)
def test_a_gap_behind_a_refused_batch_is_refused_like_it_for_a_moment(later_s: float, *, is_refused: bool) -> None:
    refusals = Refusals()
    refused = NotEnoughReplicas("1 in-sync replica")
    assert refusals.said(refused, 100.0) is refused
    said = refusals.said(GAP, 100.0 + later_s)
    assert isinstance(said, NotEnoughReplicas if is_refused else OutOfOrderSequenceNumber)
    assert str(GAP) in str(said)
    # What is said of a gap does not make the time any longer.
    assert refusals.said(GAP, 100.0 + SENT_TOGETHER_S) is GAP


@pytest.mark.parametrize("error", [InvalidProducerEpoch("epoch 1, 2 is known"), NotLeaderOrFollower("broker 2 leads")])
def test_other_errors_are_said_as_they_are(error: KafkaError) -> None:
    refusals = Refusals()
    refusals.said(NotEnoughReplicas("1 in-sync replica"), 100.0)
    assert refusals.said(error, 100.0) is error
