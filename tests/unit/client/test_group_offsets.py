"""Offsets to commit, in the forms that users give them in."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafkalite.client.group.offsets import as_committed
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import CommittedOffset, TopicPartition


class Seven:
    """An integer that is no int, as NumPy's are."""

    def __index__(self) -> int:
        return 7


def test_offsets_come_as_numbers_of_any_kind_and_nothing_else() -> None:
    good = TopicPartition("t", 1)
    numbers: Any = {("t", 1): Seven()}
    assert as_committed(numbers) == {good: CommittedOffset(7)}
    bad: list[Any] = [[1], {"t": 1}, {good: "7"}, {good: None}, {good: 1.5}, {("t",): 1}]
    for each in bad:
        with pytest.raises(ConfigError, match="offsets to commit"):
            as_committed(each)
