"""How many records a run may put into quarantine."""

from __future__ import annotations

import pytest

from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.jobs.load.quarantine import MaxQuarantined, Quarantined, check_quarantined
from spark_kafkalite.manifests.names import TIMESTAMP_REASON
from spark_kafkalite.model import TopicPartition


@pytest.mark.parametrize(
    ("text", "quarantined", "records", "allowed"),
    [
        ("0", 0, 0, True),
        ("0", 1, 1000, False),
        ("5", 5, 5, True),
        ("5", 6, 1000, False),
        ("0%", 0, 10, True),
        ("0%", 1, 10, False),
        ("0.1%", 1, 1000, True),
        ("0.1%", 1, 999, False),
        ("100%", 7, 7, True),
    ],
)
def test_so_many_or_that_part(text: str, quarantined: int, records: int, allowed: bool) -> None:
    assert MaxQuarantined.parse(text).allows(quarantined, records) == allowed
    assert str(MaxQuarantined.parse(text)) == text


@pytest.mark.parametrize("text", ["", "-1", "1.5", "%", "101%", "1 %", "many", "1e3"])
def test_other_texts_are_no_bound(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number of records"):
        MaxQuarantined.parse(text)


def test_too_many_are_told_with_the_first() -> None:
    found = Quarantined({TopicPartition("t", 0): 2, TopicPartition("u", 1): 1}, "offset 5 of t-0: it is bad")
    check_quarantined(found, 3, MaxQuarantined(3))
    with pytest.raises(AuditError, match=r"3 of 9 records cannot be decoded, .* 2; the first is offset 5 of t-0: it"):
        check_quarantined(found, 9, MaxQuarantined(2))
    late = Quarantined({TopicPartition("t", 0): 1}, f"offset 5 of t-0: {TIMESTAMP_REASON}7 ms, is bad")
    with pytest.raises(AuditError) as caught:
        check_quarantined(late, 9, MaxQuarantined())
    # No other --value helps.
    assert "--value" not in str(caught.value) and "run with a higher --max-quarantined" in str(caught.value)
