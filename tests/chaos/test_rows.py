"""Rows of the matrix of faults, on clusters that stay up; then they are stopped, their files are read, and each row's
history is judged.

``-k 'row[11]'`` plays one of them. ``KAFKALITE_SEED=N`` repeats order and chances of a run. The soak plays
``MORE_ROWS`` as well, row 9 for 300 s, and with ``KAFKALITE_CHAOS_RUNS=3`` everything with three seeds. It plays row 42
ten times for 300 s. Only the soak asks for times.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.chaos.judge import judge_files
from tests.chaos.our_cluster import DisksOfBroker
from tests.chaos.play import Round, play
from tests.chaos.rows import MIXED_MOVES, MORE_ROWS, ROWS, Row
from tests.conftest import fetch_or_skip
from tests.crash import loop_disk
from tests.lab import apache_kafka, jars
from tests.seeds import SEED, SOAK

RUNS = int(os.environ.get("KAFKALITE_CHAOS_RUNS", "1"))
MIXED_S = 300.0
# So often is row 42 played, with other chances each time.
MIXED_MOVES_RUNS = 10
# Those that need hosts of their own are played by ``test_namespaces``.
PLAYED = (
    ROWS if not SOAK else tuple(row for row in (*ROWS, *MORE_ROWS) if not row.needs_hosts and row is not MIXED_MOVES)
)
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(3600 if SOAK else 600)]


@pytest.fixture(scope="module", params=range(RUNS) if RUNS > 1 else None)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Round:
    """All rows that this run has chosen, played and ready to be judged."""
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    mine = [item for item in request.session.items if item.path == request.path]
    chosen = [item.callspec.params.get("row") for item in mine if hasattr(item, "callspec")]
    seed = SEED + getattr(request, "param", 0)
    rows = [row for row in PLAYED if row in chosen and _why_not(row) is None]
    return play(rows, tmp_path_factory.mktemp("chaos"), seed, mixed_s=MIXED_S)


def _why_not(row: Row) -> str | None:
    return loop_disk.why_not() if row.disks is DisksOfBroker.IMAGED else None


@pytest.mark.parametrize("row", [pytest.param(row, id=row.label) for row in PLAYED])
def test_row(row: Row, played: Round) -> None:
    if (reason := _why_not(row)) is not None:
        pytest.skip(reason)
    found = played.rows[row.label]
    verdict = judge_files([found.path], asks_for_times=SOAK)
    print(verdict.text())
    assert not verdict.violations and not found.problem, (
        f"seed {found.seed}: {found.problem}\n{verdict.text()}\n{found.path}"
    )


@pytest.mark.soak
@pytest.mark.parametrize("run", range(MIXED_MOVES_RUNS))
def test_moves_among_faults(run: int, tmp_path: Path) -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    found = play([MIXED_MOVES], tmp_path, SEED + run, mixed_s=MIXED_S)
    played = found.rows[MIXED_MOVES.label]
    verdict = judge_files([played.path])
    print(verdict.text())
    assert not verdict.violations and not played.problem and not found.complaints, (
        f"seed {played.seed}: {played.problem}\n{verdict.text()}\n{found.complaints}\n{played.path}"
    )
    # Gigabytes, which pytest would keep.
    shutil.rmtree(tmp_path)


def test_brokers_have_met_nothing_unforeseen(played: Round) -> None:
    assert not played.complaints
