"""Searches for schedules that fail, and says what to do to see one again.

    python -m tests.simulator SEED[-SEED] [--shrink] [--without RULE] [--like-recorded] [--moves]
                              [--disasters [KIND[:FILE]]]

A line for each seed that fails: its schedule, what has happened and what was wrong; the exit code is 1 then. With
``--shrink`` the schedule is made smaller first. ``--without`` takes one of the rules R1-R24 away.

With ``--like-recorded`` all schedules are like the recorded one of that rule, and the search ends with the first that
fails without the rule and holds with it: recorded.json is to have that one when its own fails no more.

With ``--disasters`` all schedules damage disks, cut the power of all hosts or change the registry by hand
(``FaultKind`` has the kinds), for example ``--disasters "file older:leader-epoch-checkpoint"``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.simulator.disaster_schedules import disasters
from tests.simulator.move_schedules import moves
from tests.simulator.schedule import FaultKind, Schedule, random_schedule
from tests.simulator.search import problems_of, shrunk, varied
from tests.simulator.without import RULES, without

RECORDED = Path(__file__).parent / "recorded.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description="Search for schedules that fail.")
    parser.add_argument("seeds", metavar="SEED[-SEED]", help="one seed, or the first and the last one")
    parser.add_argument("--shrink", action="store_true", help="make a schedule that fails smaller")
    parser.add_argument("--without", metavar="RULE", choices=RULES, help="take one of the rules away")
    parser.add_argument("--like-recorded", action="store_true", help="vary the schedule that is recorded for --without")
    parser.add_argument(
        "--disasters",
        metavar="KIND[:FILE]",
        nargs="?",
        const="",
        help="play schedules of disasters, all with this kind of fault, on this kind of file",
    )
    parser.add_argument("--moves", action="store_true", help="play schedules in which partitions are reassigned")
    parser.add_argument("--log", action="store_true", help="show the brokers' log")
    options = parser.parse_args()
    recorded = None
    if options.like_recorded:
        if options.without is None:
            parser.error("--like-recorded needs --without RULE: each rule has its own")
        recorded = Schedule.decode(json.dumps(json.loads(RECORDED.read_text())[options.without]))
    if options.log:
        logging.basicConfig(level=logging.INFO)
    else:
        logging.getLogger("spark_kafkalite").propagate = False
    first, _, last = options.seeds.partition("-")
    setting = partial(without, options.without) if options.without else contextlib.nullcontext
    make: Callable[[int], Schedule] = random_schedule
    if recorded is not None:
        make = partial(varied, recorded)
    elif options.moves:
        make = moves
    elif options.disasters is not None:
        kind, _, what = options.disasters.partition(":")
        make = partial(disasters, kind=FaultKind(kind) if kind else None, what=what)
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        schedule = make(seed)
        problems = problems_of(schedule, setting)
        if not problems or (recorded is not None and problems_of(schedule)):
            continue
        failed += 1
        if options.shrink:
            schedule = shrunk(schedule, setting)
            problems = problems_of(schedule, setting)
        print(f"seed {seed} fails: {schedule.encode()}", *problems, sep="\n  ", flush=True)
        if recorded is not None:
            return 1
    print(f"{failed} of {int(last or first) - int(first) + 1} schedules failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
