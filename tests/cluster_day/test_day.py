"""A day of a cluster in an hour: ``make soak SUITE=cluster-day``.

``KAFKALITE_DAY_S`` makes it shorter or longer, ``KAFKALITE_SEED`` repeats a run's chances.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from spark_kafkalite.processes import zookeeper
from tests.cluster_day.day import SECONDS, play_day
from tests.cluster_day.part import Plan
from tests.seeds import SEED

_SECONDS: Final = float(os.environ.get("KAFKALITE_DAY_S", SECONDS))
pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.zookeeper,
    pytest.mark.timeout(int(_SECONDS) + 1800),
]


def test_after_a_day_all_counts_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if (reason := zookeeper.available()) is not None:
        pytest.skip(reason)
    with capsys.disabled():
        print(f"\nKAFKALITE_SEED={SEED} KAFKALITE_DAY_S={_SECONDS:.0f}", flush=True)
    report = play_day(Plan(_SECONDS, SEED, tmp_path))
    # It is worth reading when nothing was wrong, too.
    with capsys.disabled():
        print(report.text())
    assert report.problems == []
