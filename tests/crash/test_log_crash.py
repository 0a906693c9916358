"""Random work on logs is stopped in a random operation of the disk, and what is left must be right (see ``log_model``).

About four hundred runs, in each way that a crash can leave a disk; ``test_log_crash_steps`` stops the same work in
every single operation. Every failure names its seed. The soak makes a hundred times as many, with other seeds.
"""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.log.segments import write_ahead
from spark_kafkalite.testing.memory_fs import CrashMode
from tests.crash.log_model import crash_and_check
from tests.seeds import SEED, SOAK

RUNS = 22_500 if SOAK else 225
_BLOCKS = 6 if SOAK else 1
# The runs of `make test` are chosen, not drawn.
FIRST = SEED * 1_000_000 if SOAK else 0


def run(
    seed: int, mode: CrashMode, *, stop_recovery_too: bool = False, policy: str = "delete", ahead: bool = False
) -> None:
    stop_at = random.Random(seed).randrange(1, 400)
    try:
        crash_and_check(seed, stop_at, mode, stop_recovery_too=stop_recovery_too, policy=policy, ahead=ahead)
    except Exception as error:
        raise AssertionError(f"seed {seed}, stopped at {stop_at}, {mode}: {error}") from error


@pytest.mark.parametrize("block", range(_BLOCKS))
@pytest.mark.parametrize("mode", CrashMode)
def test_random_runs(mode: CrashMode, block: int) -> None:
    for seed in range(FIRST + block, FIRST + RUNS, _BLOCKS):
        run(seed, mode)


@pytest.mark.parametrize("mode", CrashMode)
def test_random_runs_that_are_stopped_in_recovery_too(mode: CrashMode) -> None:
    for seed in range(FIRST + 100_000, FIRST + 100_000 + RUNS // 3):
        run(seed, mode, stop_recovery_too=True)


@pytest.mark.parametrize("mode", CrashMode)
def test_random_runs_with_batches_that_are_written_ahead(mode: CrashMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", 100)
    for seed in range(FIRST + 300_000, FIRST + 300_000 + RUNS // 3):
        run(seed, mode, stop_recovery_too=seed % 3 == 0, ahead=True)


@pytest.mark.parametrize("mode", CrashMode)
def test_random_runs_of_compacted_topics(mode: CrashMode) -> None:
    for seed in range(FIRST + 200_000, FIRST + 200_000 + RUNS // 10):
        run(seed, mode, stop_recovery_too=seed % 3 == 0, policy="compact")
