"""Looks for schedules that fail, and makes them as small as they can be."""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from tests.simulator.disaster_run import simulation_of
from tests.simulator.schedule import Schedule

Setting = Callable[[], AbstractContextManager[None]]


def problems_of(schedule: Schedule, setting: Setting = contextlib.nullcontext) -> list[str]:
    """Run a schedule; return what went wrong, an exception of the simulator's too."""
    with setting():
        try:
            return simulation_of(schedule).run()
        except Exception:
            return [traceback.format_exc()]


def shrunk(schedule: Schedule, setting: Setting = contextlib.nullcontext) -> Schedule:
    """Return a schedule with as few faults as still fail."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in schedule.smaller():
            if problems_of(candidate, setting):
                schedule, smaller = candidate, True
                break
    return schedule


def varied(schedule: Schedule, seed: int) -> Schedule:
    """Return a schedule with the same faults, at times of their own and with the chances of another seed.

    One that was recorded shows the lack of its rule no more when the brokers send another message somewhere; among a
    few hundred that are like it there is one that does.
    """
    chance = random.Random(seed)
    spread_s = chance.choice((0.0, 0.0, 0.02, 0.1))
    faults = (
        replace(fault, at_s=round(fault.at_s + chance.uniform(-spread_s, spread_s), 4)) for fault in schedule.faults
    )
    return replace(schedule, seed=seed, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))
