"""Tries mutants on a copy of the project: the tests that are to find one must fail with it, and pass without.

The working tree is never changed. The copy has what git knows of the project or would add to it, and the kernel as it
is built. The tests run as ``make test`` runs them, with the seed of the tree, in the order of the table, until one
fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.table import Mutant

# Ends a test that hangs because of a mutant, which is a way to find it.
_TEST_TIMEOUT_S: Final = 120
_RUN_TIMEOUT_S: Final = 1_800
_TESTS_FAILED: Final = 1
_PYTEST: Final = ("-m", "pytest", "-q", "--no-header", "--tb=line", "-p", "no:randomly", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Outcome:
    """How the tests ended with a mutant. ``found_by`` is the first test that failed, None when all passed."""

    mutant: Mutant
    found_by: str | None
    seconds: float

    def __str__(self) -> str:
        how = "SURVIVED" if self.found_by is None else f"caught by {self.found_by}"
        return f"{self.mutant.name}: {how} ({self.seconds:.0f} s)"


class BrokenTrial(Exception):
    """The tests say nothing about a mutant: they fail without it, or cannot be run."""


def occurrences(mutant: Mutant, project: Path) -> int:
    """Return how often the text that the mutant replaces is in its file; 1 is right."""
    return (project / mutant.file).read_text().count(mutant.old)


def problems(mutants: Iterable[Mutant], project: Path) -> list[str]:
    """Return a line for each mutant whose text is not in the tree exactly once, or whose tests do not exist."""
    found = []
    for mutant in mutants:
        if not (project / mutant.file).is_file():
            found.append(f"{mutant.name}: there is no {mutant.file}")
        elif (count := occurrences(mutant, project)) != 1:
            found.append(f"{mutant.name}: {mutant.file} has the text {count} times")
        found += [f"{mutant.name}: there is no {path}" for path in mutant.tests if not _exists(project, path)]
    return found


def _exists(project: Path, test: str) -> bool:
    path, separator, name = test.partition("::")
    name = name.partition("[")[0]
    return (project / path).is_file() and (not separator or f"def {name}(" in (project / path).read_text())


class Copy:
    """A copy of the project in which mutants are tried, one after the other."""

    def __init__(self, project: Path, directory: Path) -> None:
        self.root = directory
        self._project = project
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=project,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        built = (str(path.relative_to(project)) for path in (project / "spark_kafkalite").rglob("*.so"))
        for name in (*filter(None, listed.split("\0")), *built):
            if (project / name).is_file():  # git still lists what was deleted
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(project / name, directory / name)
        # Python goes by the second in which a source was written: each mutant is of another one.
        self._written_s = int(time.time())

    def check_tests(self, mutants: Iterable[Mutant]) -> None:
        """Run the tests of the mutants without any. Raises BrokenTrial unless they pass."""
        paths = sorted({path for mutant in mutants for path in mutant.tests})
        if (failed := self._first_failure(paths)) is not None:
            raise BrokenTrial(f"{failed} fails without a mutant")

    def outcome(self, mutant: Mutant) -> Outcome:
        """Return what the mutant's tests make of it. Raises BrokenTrial."""
        began_s = time.monotonic()
        with self._changed(mutant):
            found_by = self._first_failure(mutant.tests)
        return Outcome(mutant, found_by, time.monotonic() - began_s)

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        before = path.read_text()
        if before.count(mutant.old) != 1:
            raise BrokenTrial(f"{mutant.name}: {mutant.file} has the text {before.count(mutant.old)} times")
        path.write_text(before.replace(mutant.old, mutant.new))
        self._written_s += 1
        os.utime(path, (self._written_s, self._written_s))
        try:
            yield
        finally:
            shutil.copy2(self._project / mutant.file, path)

    def _first_failure(self, paths: Iterable[str]) -> str | None:
        """Run test files in order until a test fails, and return its name, None when all pass. Raises BrokenTrial."""
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        environment["PYTHONPYCACHEPREFIX"] = str(self.root / ".pycache")
        for name in ("KAFKALITE_SOAK", "KAFKALITE_SEED", "PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS"):
            environment.pop(name, None)
        command = [sys.executable, *_PYTEST, "-x", f"--timeout={_TEST_TIMEOUT_S}", *paths]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_RUN_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return f"nothing but the end of {_RUN_TIMEOUT_S} s, in which the tests did not end"
        if done.returncode == 0:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode != _TESTS_FAILED or failed is None:
            raise BrokenTrial(f"pytest {' '.join(paths)} ended with {done.returncode}:\n{done.stdout[-2_000:]}")
        return failed[1]
