from __future__ import annotations

import random

import pytest

from spark_kafkalite.broker.requests.handlers.describe_topic_partitions import _first_names
from spark_kafkalite.slices import run_whole
from tests.seeds import SEED


@pytest.mark.parametrize("count", [1, 7, 2001])
def test_the_first_names_of_many_are_found_in_pieces(count: int) -> None:
    seed = SEED
    print("seed", seed)
    chance = random.Random(seed)
    names = [f"topic-{chance.randrange(6000)}" for _ in range(10_000)]
    for start in ("", "topic-3", names[0], "z"):
        expected = sorted({name for name in names if name >= start})[:count]
        assert run_whole(_first_names(names, start, count)) == expected
    # Others have their turn between the pieces, however many names there are.
    assert sum(1 for _ in _first_names(names, "", count)) >= 10
