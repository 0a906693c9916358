"""Runs the test files that a change touches on a host that is busy and stops them again and again.

    python -m tests.stress [--base REVISION] [--minutes N] [--seed N] [FILE ...]

By hand, before a change is handed in (``make stress``). Each file runs ten times, next to two busy loops. Every 0.5 to
2 s all processes of the run, or a random one of them, are stopped for 0.3 to 1.2 s: brokers and JVMs, too. Unit tests
of what works in slices also get the clock that stalls (``tests.slowclock``). A line for each file says how many of its
runs passed. The exit code is 1 when one failed; the seed draws the stops and the stalls again.

This module is also a plug-in of the pytest processes that it starts: a test that stops a process itself waits until
these stops are over, because SIGCONT ends both.

Without FILE these are the test files that differ from the base (by default where the branch left origin/main, else the
last commit but one), and those that import a module of the tests that differs, also by way of others. A conftest.py
stands for the test files of its own folder. Unit tests come first, then what is quick by its place; after ``--minutes``
no further run begins, and what is left is named.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

from tests.paths import PROJECT
from tests.pool.process_tree import tree

RUNS: Final = 10
_BUSY_LOOPS: Final = 2
_STOPPED_S: Final = (0.3, 1.2)
_RUNNING_S: Final = (0.5, 2.0)
# So many of the stops are of all processes.
_ALL_CHANCE: Final = 0.5
# States of processes (proc(5)) that are stopped or have ended.
_STANDING: Final = "TtZXx"
_LOOK_S: Final = 0.005
_LOCK_VARIABLE: Final = "KAFKALITE_STRESS_LOCK"
_SHOWN_LINES: Final = 15
# Unit tests of what reads the clock of slices.
_SLICED: Final = (
    "tests/unit/broker/",
    "tests/unit/coordinator/",
    "tests/unit/registry/",
    "tests/unit/test_slices.py",
)
# The order of a run under a limit: many cheap files before a few dear ones.
_FOLDERS: Final = ("tests/unit/", "tests/twins/", "tests/golden/", "tests/contract/", "tests/cli/", "tests/interop/")


def is_test_file(path: str) -> bool:
    return path.startswith("tests/") and re.fullmatch(r"test_\w+\.py", PurePosixPath(path).name) is not None


def touched(changed: Iterable[str], imports: Mapping[str, set[str]]) -> list[str]:
    """Return the test files that a change of the files ``changed`` touches, in the order in which they are run.

    ``imports`` has all files of the tests, each with those that it imports.
    """
    importers: dict[str, set[str]] = {path: set() for path in imports}
    for path, imported in imports.items():
        for each in imported:
            importers[each].add(path)
    reached: set[str] = set()
    waiting = [path for path in changed if path in imports]
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        waiting += importers[path]
        folder, _, name = path.rpartition("/")
        if name == "conftest.py" and folder != "tests":
            waiting += [each for each in imports if is_test_file(each) and each.rpartition("/")[0] == folder]
    return sorted(filter(is_test_file, reached), key=_place)


def _place(path: str) -> tuple[int, str]:
    places = [number for number, folder in enumerate(_FOLDERS) if path.startswith(folder)]
    return (places[0] if places else len(_FOLDERS), path)


def imports_of_tests(project: Path) -> dict[str, set[str]]:
    """Return which files of ``tests/`` each file there imports, wherever in it."""
    files = {
        str(path.relative_to(project).with_suffix("")).replace("/", "."): str(path.relative_to(project))
        for path in (project / "tests").rglob("*.py")
    }
    return {path: _imported((project / path).read_text(), files) for path in files.values()}


def _imported(source: str, files: Mapping[str, str]) -> set[str]:
    """Return the files that a source imports. By its text: to parse all tests takes seconds."""
    found = set(re.findall(r"^\s*import (tests\.[\w.]+)", source, re.MULTILINE))
    for module, names in re.findall(r"^\s*from (tests[\w.]*) import (\([^)]*\)|.*)", source, re.MULTILINE):
        found |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
    return {files[name] for name in found if name in files}


def changed_files(project: Path, base: str | None) -> list[str]:
    """Return the files that differ from the base, those that git does not know yet included."""
    if base is None:
        merge_base = _git(project, "merge-base", "HEAD", "origin/main", may_fail=True)
        base = merge_base[0] if merge_base else "HEAD~1"
    return [
        *_git(project, "diff", "--name-only", base, "--"),
        *_git(project, "ls-files", "--others", "--exclude-standard"),
    ]


def _git(project: Path, *arguments: str, may_fail: bool = False) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=project, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines() if done.returncode == 0 else []


def command_of(path: str) -> list[str]:
    """Return how a file's tests are run once."""
    clock = ["-p", "tests.slowclock"] if path.startswith(_SLICED) else []
    plugins = ["-p", "no:cacheprovider", "-p", "tests.stress", *clock]
    return [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", *plugins, path]


@contextmanager
def busy_loops() -> Iterator[None]:
    """Have both cores of a small host compute something else meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_BUSY_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_with_stops(command: list[str], output: Path, seed: int, environment: Mapping[str, str]) -> int:
    """Run a command whose processes are stopped again and again, and return its exit code."""
    draw = random.Random(seed)
    with output.open("wb") as file, tempfile.NamedTemporaryFile(prefix="kafkalite-stops-") as lock:
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env={**environment, _LOCK_VARIABLE: lock.name},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    return process.wait(draw.uniform(*_RUNNING_S))
                except subprocess.TimeoutExpired:
                    pass
                with _locked(lock.name):
                    _stop_some(process.pid, draw)
        finally:
            if process.poll() is None:  # interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _stop_some(root: int, draw: random.Random) -> None:
    """Stop all processes of a run, or one of them, for a while. Those that a test has stopped are left alone."""
    running = [number for number, status in sorted(tree(root).items()) if status.state not in _STANDING]
    chosen = running if draw.random() < _ALL_CHANCE else draw.sample(running, min(1, len(running)))
    try:
        _signal(chosen, signal.SIGSTOP)
        time.sleep(draw.uniform(*_STOPPED_S))
    finally:
        _signal(chosen, signal.SIGCONT)


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Have the stops of a run to oneself, among this program and its pytest process."""
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Let the tests stop processes only between the stops of a run."""
    path, kill = os.environ[_LOCK_VARIABLE], os.kill

    def kill_between_stops(process: int, number: int, /) -> None:
        if number != signal.SIGSTOP:
            kill(process, number)
            return
        with _locked(path):
            kill(process, number)
            # It runs on until it has taken the signal.
            while (status := tree(process).get(process)) is not None and status.state not in _STANDING:
                time.sleep(_LOOK_S)

    os.kill = kill_between_stops
    config.add_cleanup(lambda: setattr(os, "kill", kill))


@dataclass
class Tally:
    """How the runs of one file ended. A file whose tests are all for the soak ``is_empty``."""

    path: str
    passed: int = 0
    failed: int = 0
    seed_of_failure: int | None = None
    is_empty: bool = False

    @property
    def runs(self) -> int:
        return self.passed + self.failed

    def __str__(self) -> str:
        if self.is_empty:
            return f"no test but for the soak: {self.path}"
        if self.failed:
            return f"{self.passed} of {self.runs} passed: {self.path}; failed first with --seed {self.seed_of_failure}"
        left = "" if self.runs == RUNS else f", {RUNS - self.runs} not run"
        return f"{self.passed} of {self.runs} passed{left}: {self.path}"


def stress(paths: list[str], seed: int, minutes: float) -> list[Tally]:
    """Run each file ten times, and print its tally and what a run that failed has printed last."""
    ends_s = time.monotonic() + 60 * minutes
    tallies = [Tally(path) for path in paths]
    with busy_loops(), tempfile.TemporaryDirectory(prefix="kafkalite-stress-") as scratch:
        for tally in tallies:
            for number in range(RUNS):
                if time.monotonic() > ends_s:
                    break
                output = Path(scratch) / "output"
                environment = {**os.environ, "KAFKALITE_SLOW_CLOCK_SEED": str(seed + number)}
                code = run_with_stops(command_of(tally.path), output, seed + number, environment)
                if code == pytest.ExitCode.NO_TESTS_COLLECTED:
                    tally.is_empty = True
                    break
                if code == 0:
                    tally.passed += 1
                    continue
                tally.failed += 1
                tally.seed_of_failure = seed + number if tally.seed_of_failure is None else tally.seed_of_failure
                lines = output.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
                print(f"--- {tally.path}, run {number + 1}, exit code {code}", *lines, sep="\n", flush=True)
            if tally.runs or tally.is_empty:
                print(tally, flush=True)
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description="Run touched tests on a bad host.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="test files; those that the change touches without")
    parser.add_argument("--base", metavar="REVISION", help="what the change is compared with")
    parser.add_argument("--minutes", type=float, default=5, help="no run begins later than this (default 5)")
    parser.add_argument("--seed", type=int, help="draws the stops and stalls; a new one without")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    paths = options.files or touched(changed_files(PROJECT, options.base), imports_of_tests(PROJECT))
    if not paths:
        print("the change touches no test file")
        return 0
    print(f"seed {seed}, {len(paths)} files", flush=True)
    tallies = stress(paths, seed, options.minutes)
    if left := [tally.path for tally in tallies if not (tally.runs or tally.is_empty)]:
        print(f"{options.minutes:g} minutes were not enough for:", *left, sep="\n  ")
    return 1 if any(tally.failed for tally in tallies) else 0


if __name__ == "__main__":
    raise SystemExit(main())
