"""What each test file costs: CPU seconds of its pytest process and all below it, and the seconds it waited.

CPU seconds hardly depend on the host's load, so any machine shows that a file has grown. ``tests/costs.json`` holds the
last figures that ``make costs`` wrote on a quiet machine. They also order the pool: the longest file first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.paths import PROJECT
from tests.pool.process_tree import tree

COSTS_FILE: Final = PROJECT / "tests" / "costs.json"
# A new file is begun early: it may be a long one.
_UNKNOWN_S: Final = 30.0
# Growth that is worth a warning, and how many files are named.
_GROWN: Final = 1.10
_NAMED: Final = 5
# Less is noise.
_LEAST_S: Final = 2.0


@dataclass(frozen=True)
class Cost:
    """Seconds of the processor, and seconds without it."""

    cpu_s: float = 0.0
    wait_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wait_s + other.wait_s)


def read_costs(path: Path = COSTS_FILE) -> dict[str, Cost]:
    """Return the cost of each file by its name in the project; nothing where there is no such page."""
    if not path.exists():
        return {}
    return {name: Cost(*pair) for name, pair in json.loads(path.read_text(encoding="utf-8")).items()}


def write_costs(costs: Mapping[str, Cost], path: Path = COSTS_FILE) -> None:
    """Write one file a line, so that a difference can be read."""
    lines = (f"  {json.dumps(name)}: [{cost.cpu_s:.1f}, {cost.wait_s:.1f}]" for name, cost in sorted(costs.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def expected_s(name: str, known: Mapping[str, Cost]) -> float:
    """Return how long a file takes on a machine that does nothing else."""
    cost = known.get(name)
    return _UNKNOWN_S if cost is None else cost.cpu_s + cost.wait_s


def longest_first(files: Iterable[str], known: Mapping[str, Cost], prefix: str = "") -> list[str]:
    """Return the files in the order in which a pool begins them. Their costs have ``prefix`` before their names."""
    return sorted(files, key=lambda name: (-expected_s(prefix + name, known), name))


def comparison(costs: Mapping[str, Cost], known: Mapping[str, Cost]) -> list[str]:
    """Return a line for each folder, next to what its files cost before, and a warning for those that have grown."""
    lines = []
    for folder in sorted({_folder(name) for name in costs}):
        lines.append(_line(folder, [name for name in costs if _folder(name) == folder], costs, known))
    lines.append(_line("all", list(costs), costs, known))
    total, known_total = (sum(table.get(name, Cost()).cpu_s for name in costs) for table in (costs, known))
    grown = sorted(
        (
            (cost.cpu_s - known[name].cpu_s, name)
            for name, cost in costs.items()
            if name in known and cost.cpu_s > _GROWN * known[name].cpu_s and cost.cpu_s > known[name].cpu_s + _LEAST_S
        ),
        reverse=True,
    )
    if total > _GROWN * known_total > 0:
        lines.append(f"WARNING: these files need {total / known_total:.0%} of the CPU that tests/costs.json has")
    lines += [f"  {name}: {known[name].cpu_s:.1f} -> {costs[name].cpu_s:.1f} CPU s" for _, name in grown[:_NAMED]]
    return lines


def _line(what: str, names: Iterable[str], costs: Mapping[str, Cost], known: Mapping[str, Cost]) -> str:
    now, before = (sum((table.get(name, Cost()) for name in names), Cost()) for table in (costs, known))
    return (
        f"{what:<26} {now.cpu_s:6.0f} of {before.cpu_s:5.0f} CPU s, {now.wait_s:6.0f} of {before.wait_s:5.0f} s waiting"
    )


def tree_cpu_s(root: int) -> float:
    """Return the CPU seconds of a process, of all processes below it, and of those of them that have ended."""
    return sum(status.used for status in tree(root).values()) / os.sysconf("SC_CLK_TCK")


def _folder(name: str) -> str:
    return "/".join(Path(name).parent.parts[:3])
