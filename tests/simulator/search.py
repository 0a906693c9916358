"""Looks for schedules that fail, and makes them as small as they can be."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.simulator.run import Simulation
from tests.simulator.schedule import Schedule

Setting = Callable[[], AbstractContextManager[None]]


def problems_of(schedule: Schedule, setting: Setting = contextlib.nullcontext) -> list[str]:
    """Run a schedule; return what went wrong, an exception of the simulator's too."""
    with setting():
        try:
            return Simulation(schedule).run()
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
