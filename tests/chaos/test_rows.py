"""Rows of the matrix of faults, on one cluster that stays up; then it is stopped, its files are read, and each row's
history is judged.

``-k 'row[11]'`` plays one of them. ``KAFKALITE_CHAOS_SEED=N`` repeats order and chances of a run, which prints it.
"""

from __future__ import annotations

import os
import random

import pytest

from spark_kafkalite.testing import apache_kafka, jars
from tests.chaos.judge import judge_files
from tests.chaos.play import Round, play
from tests.chaos.rows import ROWS, Row
from tests.conftest import fetch_or_skip

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Round:
    """All rows that this run has chosen, played and ready to be judged."""
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    mine = [item for item in request.session.items if item.path == request.path]
    chosen = [item.callspec.params["row"] for item in mine if hasattr(item, "callspec")]
    seed = int(os.environ.get("KAFKALITE_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"KAFKALITE_CHAOS_SEED={seed}")
    return play((row for row in ROWS if row in chosen), tmp_path_factory.mktemp("chaos"), seed)


@pytest.mark.parametrize("row", [pytest.param(row, id=str(row.number)) for row in ROWS])
def test_row(row: Row, played: Round) -> None:
    found = played.rows[row.number]
    verdict = judge_files([found.path])
    print(verdict.text())
    assert not verdict.violations and not found.problem, f"{found.problem}\n{verdict.text()}\n{found.path}"


def test_brokers_have_met_nothing_unforeseen(played: Round) -> None:
    assert not played.complaints
