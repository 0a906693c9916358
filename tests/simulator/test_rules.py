"""Each rule of replication is needed: without it a recorded schedule of the simulator fails.

The soak also searches for each rule a schedule that shows its lack.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.simulator.schedule import Schedule, random_schedule
from tests.simulator.search import problems_of, varied
from tests.simulator.test_simulator import FIRST
from tests.simulator.without import without

# Schedules that failed once, when a rule was taken away: by the rule.
RECORDED: Final = json.loads((Path(__file__).parent / "recorded.json").read_text())
SEARCHED_WITHOUT: Final = 2_000


@pytest.mark.full
@pytest.mark.parametrize("rule", sorted(RECORDED))
def test_without_a_rule_a_recorded_schedule_fails(rule: str) -> None:
    schedule = Schedule.decode(json.dumps(RECORDED[rule]))
    assert problems_of(schedule) == []
    assert problems_of(schedule, partial(without, rule))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", sorted(RECORDED))
def test_without_a_rule_a_search_finds_a_schedule(rule: str) -> None:
    """Every other schedule is like the recorded one: those that show the lack of some rules are rare."""
    recorded = Schedule.decode(json.dumps(RECORDED[rule]))
    for seed in range(FIRST, FIRST + SEARCHED_WITHOUT):
        schedule = random_schedule(seed) if seed % 2 else varied(recorded, seed)
        if problems_of(schedule, partial(without, rule)):
            assert problems_of(schedule) == [], f"seed {seed} fails with {rule} too: {schedule.encode()}"
            print(f"{rule}: {seed - FIRST + 1} schedules, seed {seed}")
            return
    pytest.fail(f"none from seed {FIRST} on")
