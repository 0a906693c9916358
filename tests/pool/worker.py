"""A pytest plug-in: runs test files that the pool's runner hands out, one after the other, in one session.

Each file is collected when its turn comes, by one process only: to collect all 13,000 tests takes 40 CPU seconds. What
session fixtures start lives on from file to file. The runner (``pool.runner``) starts the process with
``-p tests.pool.worker`` and its address in KAFKALITE_TEST_POOL.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Final

import pytest

from tests.pool.costs import Cost, tree_cpu_s

POOL_VARIABLE: Final = "KAFKALITE_TEST_POOL"


class Worker:
    """The plug-in. It tells the runner how each file went, and gets the next one."""

    def __init__(self, runner: Connection) -> None:
        self._runner = runner
        self._counts: Counter[str] = Counter()
        self._failures: list[tuple[str, str]] = []
        self._times: list[tuple[float, str]] = []
        self._root: pytest.Collector | None = None
        self._nodes: dict[Path, pytest.Collector] = {}
        self._began_s, self._used_s = time.monotonic(), tree_cpu_s(os.getpid())

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        session.items = []
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # The next test says which fixtures live on: a test runs when the one after it, of whatever file, is known.
        held: list[tuple[str, pytest.Item | None]] = []
        for file, item in self._steps(session):
            if item is not None:
                self._take(session, held, item)
                held.clear()
            held.append((file, item))
        self._take(session, held, None)
        session.testscollected = 1
        return True

    def _steps(self, session: pytest.Session) -> Iterator[tuple[str, pytest.Item | None]]:
        """Yield the tests of the files that the runner hands out, and None at the end of each file."""
        while (file := self._next_file()) is not None:
            for item in self._collected(session, file):
                yield file, item
            yield file, None

    def _take(
        self, session: pytest.Session, steps: Iterable[tuple[str, pytest.Item | None]], following: pytest.Item | None
    ) -> None:
        """Run a test, and report the files that end with it."""
        for file, item in steps:
            if item is not None:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            is_last = bool(session.shouldfail)  # -x
            if item is None or is_last:
                self._report(file, is_last=is_last)
            if is_last:
                raise session.Failed(session.shouldfail)

    def _next_file(self) -> str | None:
        self._runner.send(("next", None))
        file: str | None = self._runner.recv()
        return file

    def _collected(self, session: pytest.Session, file: str) -> list[pytest.Item]:
        """Return the tests of a file, in their order, without those that are not selected."""
        module = self._node(session, session.config.rootpath / file)
        # None: a conftest leaves it out.
        items = [] if module is None else list(session.genitems(module))
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        # Fixtures of a module ask the session which of its tests run.
        session.items = [*session.items, *items]
        # Modules and collected tests stay until the end. Looking through them at each garbage collection cost a fifth
        # of what unit tests compute. The garbage of the file before has to go first.
        gc.collect()
        gc.freeze()
        return items

    def _node(self, session: pytest.Session, path: Path) -> pytest.Collector | None:
        """Return the collector of a file or folder. A folder keeps its node: its fixtures belong to it."""
        if path == session.config.rootpath:
            if self._root is None:
                self._root = session.ihook.pytest_collect_directory(path=path, parent=session)
            return self._root
        if path not in self._nodes:
            parent = self._node(session, path.parent)
            assert parent is not None
            # The hook also loads the folder's conftest.
            report = parent.ihook.pytest_make_collect_report(collector=parent)
            if not report.passed:
                raise pytest.UsageError(f"{parent.nodeid}: {report.longreprtext}")
            self._nodes |= {each.path: each for each in report.result if isinstance(each, pytest.Collector)}
        return self._nodes.get(path)

    def _report(self, file: str, *, is_last: bool) -> None:
        """Say how the file went, what it cost, its collection included, and whether the run ends with it."""
        now_s, used_s = time.monotonic(), tree_cpu_s(os.getpid())
        # A process that has left the tree takes its part along.
        cpu_s = max(0.0, used_s - self._used_s)
        cost = Cost(cpu_s, max(0.0, now_s - self._began_s - cpu_s))
        self._runner.send(("done", (file, dict(self._counts), self._failures, self._times, cost, is_last)))
        self._counts, self._failures, self._times = Counter(), [], []
        self._began_s, self._used_s = now_s, used_s

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._times.append((report.duration, report.nodeid))
        if report.failed:
            self._fail("failed" if report.when == "call" else "error", report.nodeid, _text(report))
        elif report.skipped:
            self._counts["skipped"] += 1
        elif report.when == "call":
            self._counts["passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail("error", report.nodeid, _text(report))
        elif report.skipped:
            self._counts["skipped"] += 1

    def _fail(self, outcome: str, test: str, text: str) -> None:
        self._counts[outcome] += 1
        self._failures.append((test, text))


def _text(report: pytest.TestReport | pytest.CollectReport) -> str:
    sections = [f"--- {title} ---\n{content}" for title, content in report.sections]
    return "\n".join([report.longreprtext, *sections])


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Worker(Client(os.environ[POOL_VARIABLE])), "kafkalite-pool-worker")
