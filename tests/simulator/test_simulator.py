"""Brokers in simulated time: nothing that a schedule does to them loses, doubles or reorders what was acknowledged.

The soak searches 20,000 schedules instead of seven. ``make check`` runs the first three tests only (the others have
the marker ``full``). ``python -m tests.simulator SEED`` repeats one schedule.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Final

import pytest

from tests.paths import PROJECT
from tests.patience import PATIENCE_S
from tests.seeds import SEED, SOAK
from tests.simulator.move_schedules import moves
from tests.simulator.run import Simulation
from tests.simulator.schedule import (
    DISASTERS,
    Fault,
    FaultKind,
    Schedule,
    SimulatedTopic,
    deletions,
    random_schedule,
    stops_in_order,
)
from tests.simulator.search import problems_of, shrunk

# The soak begins elsewhere each time.
FIRST: Final = SEED * 1_000 if SOAK else 0
# The schedules of `make test` are chosen, not drawn: they take little time and have faults of every kind.
CHOSEN: Final = (10, 11, 14, 23, 31, 34, 46)
SCHEDULES: Final = range(FIRST, FIRST + 20_000) if SOAK else CHOSEN


def trace_of(seed: int) -> int:
    simulation = Simulation(random_schedule(seed))
    assert simulation.run() == []
    return simulation.world.trace


def test_a_seed_repeats_exactly() -> None:
    here = trace_of(17)
    assert here == trace_of(17)
    program = "from tests.simulator.test_simulator import trace_of; print(trace_of(17))"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run(
            [sys.executable, "-c", program],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=5 * PATIENCE_S,
        )
        assert int(there.stdout) == here


@pytest.mark.timeout(36_000 if SOAK else 600)
def test_nothing_goes_wrong() -> None:
    for seed in SCHEDULES:
        schedule = random_schedule(seed)
        if problems_of(schedule):
            schedule = shrunk(schedule)
            pytest.fail("\n".join([f"seed {seed}: {schedule.encode()}", *problems_of(schedule)]))


def test_the_chosen_schedules_and_the_deletions_have_faults_of_every_kind() -> None:
    schedules = [*map(random_schedule, CHOSEN), deletions(0), moves(0)]
    assert {fault.kind for schedule in schedules for fault in schedule.faults} == set(FaultKind) - DISASTERS


@pytest.mark.full
@pytest.mark.timeout(7200 if SOAK else 600)
def test_stops_in_order_have_nobody_write_twice() -> None:
    for seed in range(FIRST, FIRST + (1_000 if SOAK else 1)):
        assert problems_of(stops_in_order(seed, 8 if SOAK else 4)) == [], f"seed {seed}"


@pytest.mark.full
@pytest.mark.timeout(7200 if SOAK else 600)
def test_who_was_away_while_records_were_deleted_comes_back() -> None:
    for seed in range(FIRST, FIRST + (1_000 if SOAK else 2)):
        assert problems_of(deletions(seed)) == [], f"seed {seed}"


@pytest.mark.full
@pytest.mark.timeout(7200 if SOAK else 600)
def test_leaders_that_are_asked_whether_they_lead_say_the_truth() -> None:
    for seed in range(FIRST, FIRST + 1_000) if SOAK else CHOSEN[:2]:
        simulation = Simulation(replace(random_schedule(seed), asks_leaders=True))
        assert simulation.run() == [], f"seed {seed}"
        assert simulation.questions.confirmed


@pytest.mark.full
def test_clocks_never_part_further_than_brokers_take_records() -> None:
    """Two jumps the same way once had a leader refuse every record: message.timestamp.after.max.ms is an hour."""
    jumps = tuple(Fault(at_s, FaultKind.JUMP_CLOCK, broker, -3600.0) for at_s in (0.6, 0.8) for broker in (1, 2, 3))
    assert problems_of(Schedule(1, 3, (SimulatedTopic(1, 3, 2),), 1.0, 1.0, jumps)) == []
