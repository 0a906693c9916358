"""What every bench shares: a measured row, a process's CPU and memory, the warm-up that virtual machines need."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One figure of ours beside the peer's, over several runs of each, taken in turn.

    ``target`` is the ratio to reach, ours over the peer's; with ``higher_is_better`` false it is a ratio not to pass.
    ``at_most`` is a bound on our own figure where there is one (seconds to start, bytes of memory).
    """

    what: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float]
    peer_name: str
    higher_is_better: bool = True
    target: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def our_median(self) -> float:
        return statistics.median(self.ours)

    @property
    def peer_median(self) -> float | None:
        return statistics.median(self.peer) if self.peer else None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's; None without a peer."""
        return self.our_median / self.peer_median if self.peer_median else None

    @property
    def verdict(self) -> str:
        """``reached``, ``within 2x`` (the floor for everything) or ``below the floor``."""
        if self.at_most is not None and self.our_median > self.at_most:
            return "not reached"
        if self.target is None or self.ratio is None:
            return "reached" if self.at_most is not None else ""
        if (self.ratio >= self.target) if self.higher_is_better else (self.ratio <= self.target):
            return "reached"
        floor = (self.ratio >= 0.5) if self.higher_is_better else (self.ratio <= 2)
        return "not reached" if floor else "BELOW THE FLOOR"


def figure_text(value: float | None) -> str:
    """Return a figure as it is shown."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def wanted(row: Row) -> str:
    """Return what a row is to reach."""
    sign = ">=" if row.higher_is_better else "<="
    bounds = [f"{sign} {row.target:g}x"] if row.target is not None else []
    bounds += [f"<= {row.at_most:g} {row.unit}"] if row.at_most is not None else []
    return ", ".join(bounds) or "-"


def line_of(row: Row) -> str:
    """Return a row as it is printed."""
    ratio = f"{row.ratio:.2f}x" if row.ratio else "-"
    return (
        f"{row.what}: {figure_text(row.our_median)} {row.unit}, {row.peer_name}: {figure_text(row.peer_median)}, "
        f"{ratio} (wanted {wanted(row)}) {row.verdict}"
    )


@dataclass
class Usage:
    """CPU seconds of a process since this was made."""

    pid: int
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = _cpu_s(self.pid)

    @property
    def cpu_s(self) -> float:
        return _cpu_s(self.pid) - self._start


def thread_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's present threads to the nanosecond; :class:`Usage` counts hundredths."""
    return (
        sum(int((thread / "schedstat").read_text().split()[0]) for thread in Path(f"/proc/{pid}/task").iterdir()) / 1e9
    )


def _cpu_s(pid: int) -> float:
    """User and system seconds of a process with all its threads, and of children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    return _memory(pid, "VmRSS:")


def peak_bytes(pid: int) -> int:
    """Return the most resident memory that a process has had."""
    return _memory(pid, "VmHWM:")


def _memory(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def warm_page_cache(size_bytes: int) -> None:
    """Write and delete a file as large as a bench will write.

    The first touch of a virtual machine's memory costs the host time, charged to whoever is measured first.
    """
    block = bytes(1 << 20)
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which ``fraction`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
