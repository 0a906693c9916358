"""Judges histories: ``python -m tests.chaos.judge [--json] HISTORY...`` prints what is wrong, with the events that show
it, and the figures. The files together are one history. Exit code 0: nothing is wrong; 1: something is; 2: it cannot be
judged.

The rules are functions in ``rules``, named C1 to C15; H1 asks whether there is everything that they need.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

from tests.chaos.history import BadHistory, Event, Fault, Health, Log, Poll, as_json, read_history
from tests.chaos.rules import brokers, groups, logs, readers, writes
from tests.chaos.rules.case import Case, Violation

RULES: tuple[Callable[[Case], Iterator[Violation]], ...] = (
    logs.wholeness,
    logs.agreement,
    writes.durability,
    writes.no_phantoms,
    writes.no_duplicates,
    writes.order,
    readers.reading_order,
    brokers.epochs_and_bounds,
    readers.groups,
    readers.drained,
    groups.delivered,
    brokers.progress,
    brokers.health,
    brokers.registry,
    logs.shown_stays,
    logs.one_leader_an_epoch,
    readers.told_offsets,
    brokers.gaps,
)
_BOUNDS = {"longest_gap_s", "isr_within_s", "resumes_within_s", "within_s"}
_SHOWN_OF_A_RULE = 5
_SHOWN_CHARACTERS = 300


class FaultFigures(NamedTuple):
    """How long a fault's partitions stood still at most, and how long the ISRs took to be full after it; ``bound_s`` is
    None where nothing was asked."""

    name: str
    target: str
    longest_gap_s: float
    bound_s: float | None
    settle_s: float

    @property
    def text(self) -> str:
        return f"{self.name} {self.target}".strip()


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a history, and its figures."""

    violations: list[Violation]
    figures: dict[str, int | float]
    faults: list[FaultFigures] = field(default_factory=list)

    @property
    def rules(self) -> set[str]:
        """The rules that are broken."""
        return {violation.rule for violation in self.violations}

    def text(self) -> str:
        """Return what people read: of each rule the first few violations, then the figures."""
        lines = []
        for rule in sorted(self.rules, key=lambda rule: (rule[0], int(rule[1:]))):
            found = [violation for violation in self.violations if violation.rule == rule]
            for violation in found[:_SHOWN_OF_A_RULE]:
                lines.append(f"{rule}: {violation.text}")
                lines += [f"    {_shown(event)}" for event in violation.events]
            if len(found) > _SHOWN_OF_A_RULE:
                lines.append(f"{rule}: {len(found) - _SHOWN_OF_A_RULE} more")
        lines.append(", ".join(f"{name} {value}" for name, value in self.figures.items()))
        for fault in self.faults:
            bound = "" if fault.bound_s is None else f" of {fault.bound_s:.1f}"
            lines.append(
                f"{fault.text}: longest gap {fault.longest_gap_s:.2f}{bound} s, in sync {fault.settle_s:.1f} s"
            )
        lines.append(f"broken: {' '.join(sorted(self.rules))}" if self.violations else "nothing is wrong")
        return "\n".join(lines)


def judge(events: Iterable[Event]) -> Verdict:
    """Hold a history against every rule."""
    case = Case(events)
    violations = [violation for rule in RULES for violation in rule(case)]
    faults = [
        FaultFigures(
            fault.name,
            fault.target,
            max((brokers.longest_gap(case, fault, at)[0] for at in brokers.bounded(case, fault)), default=0.0),
            fault.longest_gap_s,
            fault.settle_s,
        )
        for fault in case.faults
    ]
    return Verdict(violations, {**writes.tally(case)}, faults)


def judge_files(paths: Iterable[Path], *, asks_for_times: bool = True) -> Verdict:
    """Judge a history that is kept in files; times are recorded in any case. Raises BadHistory."""
    events = read_history(paths)
    return judge(events if asks_for_times else map(without_times, events))


def without_times(event: Event) -> Event:
    """Return an event that asks for the same, however long it takes."""
    if isinstance(event, Health):
        return replace(event, lag_p999_ms=-1.0, longest_lag_ms=-1.0)
    if isinstance(event, Fault) and event.p99_factor is not None:
        event = replace(event, p99_factor=None)
    present = {each.name for each in fields(event)} & _BOUNDS
    return replace(event, **{name: math.inf for name in present if getattr(event, name) is not None})


def _shown(event: Event) -> str:
    # Logs and polls are long; what is wrong with them is in the text.
    text = as_json(event)
    cut = _SHOWN_CHARACTERS // 2 if isinstance(event, Log | Poll) else _SHOWN_CHARACTERS
    return f"line {event.line}: {text if len(text) <= cut else f'{text[:cut]}...'}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="judge", description="Judge the history of a cluster and its clients.")
    parser.add_argument("files", nargs="+", type=Path, metavar="HISTORY", help="files that together are one history")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    options = parser.parse_args(arguments)
    try:
        verdict = judge_files(options.files)
    except (BadHistory, OSError) as error:
        print(f"cannot be judged: {error}", file=sys.stderr)
        return 2
    if options.json:
        broken = [{"rule": each.rule, "text": each.text, "count": each.count} for each in verdict.violations]
        faults = [each._asdict() for each in verdict.faults]
        print(json.dumps({"violations": broken, "figures": verdict.figures, "faults": faults}))
    else:
        print(verdict.text())
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
