"""Which suite a process of the pool takes up, and that a run by this rule keeps the processors busy to its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.pool.suites import Backlog, Suite, most_behind

CORES = 2
A, B, C = (Suite(name, (), workers=workers) for name, workers in (("a", 4), ("b", 1), ("c", 2)))


def test_who_has_the_most_before_it_comes_first() -> None:
    assert most_behind([Backlog(A, 100, 9, 0), Backlog(B, 60, 9, 0), Backlog(C, 90, 9, 0)]) is B
    # Each of the others has its process by now, or could not use more.
    assert most_behind([Backlog(A, 100, 9, 1), Backlog(B, 60, 9, 1), Backlog(C, 90, 9, 0)]) is C
    assert most_behind([Backlog(A, 100, 9, 1), Backlog(B, 60, 9, 1), Backlog(C, 90, 9, 1)]) is A
    assert most_behind([Backlog(A, 100, 9, 2), Backlog(B, 60, 9, 1), Backlog(C, 90, 9, 1)]) is C
    assert most_behind([Backlog(A, 100, 2, 2), Backlog(B, 60, 9, 1), Backlog(C, 90, 9, 2)]) is None


@dataclass
class File:
    """A file that runs: what it has left, in seconds on a machine that does nothing else, and the part it computes."""

    suite: Suite
    left_s: float
    computing: float


@dataclass
class SimulatedPool:
    """A pool whose files share what the urgent ones leave of the processors. :meth:`run` returns its seconds."""

    files: dict[Suite, list[tuple[float, float]]]
    size: int
    running: list[File] = field(default_factory=list)
    now_s: float = 0.0

    def take(self, suite: Suite | None) -> None:
        """Begin the next file of a suite; of the one that is the most behind when it has none."""
        if suite is None or not self.files[suite]:
            counts = Counter(file.suite for file in self.running)
            suite = most_behind(
                Backlog(each, sum(map(sum, files)), len(files), counts[each]) for each, files in self.files.items()
            )
        if suite is not None:
            cpu_s, wait_s = self.files[suite].pop(0)
            self.running.append(File(suite, cpu_s + wait_s, cpu_s / (cpu_s + wait_s)))

    def run(self) -> float:
        for _ in range(self.size):
            self.take(None)
        while self.running:
            urgent, others = (
                sum(file.computing for file in self.running if file.suite.is_urgent is is_urgent)
                for is_urgent in (True, False)
            )
            pace = {True: 1.0, False: min(1.0, (CORES - urgent) / (others or 1.0))}
            first = min(self.running, key=lambda file: file.left_s / pace[file.suite.is_urgent])
            seconds = first.left_s / pace[first.suite.is_urgent]
            self.now_s += seconds
            self.running.remove(first)
            for file in self.running:
                file.left_s -= seconds * pace[file.suite.is_urgent]
            self.take(first.suite)
        return self.now_s


@pytest.mark.parametrize("waiting", [0.25, 1.0, 2.0])
def test_a_run_ends_when_the_processors_or_its_longest_chain_let_it(waiting: float) -> None:
    """``waiting`` is how long files of the largest suite wait, per second that they compute."""
    largest, chain, *others = (
        Suite("largest", (), workers=5),
        Suite("chain", (), workers=1, is_urgent=True),
        Suite("units", (), workers=2),
        Suite("again", (), workers=1),
        Suite("short", (), workers=1),
    )
    cpu_s = [60.0, 40.0, 20.0, 20.0, 10.0, 10.0, *[5.0] * 20]
    files = {
        largest: [(each, each * waiting) for each in cpu_s * 2],
        chain: [(each, each * 0.5) for each in cpu_s],
        **{suite: [(each, 0.0) for each in cpu_s[2:]] for suite in others},
    }
    chain_s = sum(map(sum, files[chain]))
    computing_s = sum(cpu for each in files.values() for cpu, _ in each) / CORES
    least_s = max(chain_s, computing_s)
    assert SimulatedPool(files, 5).run() < 1.15 * least_s
