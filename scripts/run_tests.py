"""Runs the tests: pools of pytest processes that share the files of one run, and a summary of it all.

``make check`` runs the suite ``check``, ``make test`` all suites of TEST in one pool. A suite that is named runs in a
pool of its own, one after the other: so does the soak. The last lines are what the files cost next to
``tests/costs.json``, the ten slowest tests, a line for each suite, and pytest's own kind of summary. The exit code is 0
only if every suite ran something and nothing failed.

    python scripts/run_tests.py [OPTION ...] [SUITE ...] [-- PYTEST_ARGUMENT ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import class_archives  # noqa: E402
from tests.pool.costs import COSTS_FILE, Cost, comparison, read_costs, write_costs  # noqa: E402
from tests.pool.idle import read_host_ticks  # noqa: E402
from tests.pool.parts import Parts  # noqa: E402
from tests.pool.runner import FileResult, Pool  # noqa: E402
from tests.pool.suites import Suite  # noqa: E402
from tests.seeds import SEED  # noqa: E402

OUTCOMES = ("failed", "error", "passed", "skipped")
# Tests wait about as long as they compute, and for minutes much longer. On two processors the same tests compute longer
# by a tenth with nine processes than with six. With four, the processors idle too much.
POOL_SIZE, MORE = 6, 3

UNIT = ("tests/unit", "tests/twins", "tests/cluster_day", "tests/simulator")
GOLDEN = "tests/golden"
# What reads the clock of slices, connections, peers or gates. The other unit tests give those a clock of their own.
SLICED = (
    "tests/unit/test_slices.py",
    "tests/unit/broker/network",
    "tests/unit/broker/requests",
    "tests/unit/registry/cluster/test_inbox.py",
    "tests/unit/registry/controller/test_controller.py",
    "tests/unit/registry/controller/test_several_brokers.py",
)
CLUSTER = "tests/interop/cluster"
SPARK = ("tests/spark", "tests/jobs")
PACKAGING = "tests/packaging"
# What the soak does more of with Spark.
APPLICATIONS = tuple(
    f"tests/spark/test_{name}.py"
    for name in (
        "job_audit",
        "job_compaction",
        "job_errors",
        "job_hdfs",
        "job_kills",
        "job_lease",
        "job_stops",
        "kills",
        "memory",
        "mirror",
        "programs",
        "recipes",
        "replay_runs",
        "submitted",
    )
)
# All of them run in one pool. The first has what the others do not name.
TEST = (
    Suite(
        "pool",
        ("tests",),
        without=tuple(f"{folder}/" for folder in (*UNIT, *SPARK, PACKAGING, CLUSTER)),
        workers=POOL_SIZE,
        more=MORE,
        needs_parts=True,
    ),
    # Each of its processes has a cluster for as long as it lives, which takes a hundredth of a core while it idles.
    Suite("clusters", (CLUSTER,), workers=3),
    # In processes without threads of session fixtures: a client's draws from ``random`` while hypothesis does.
    Suite("units", UNIT, workers=2),
    Suite("spark", SPARK, workers=2, is_urgent=True),
    # What depends on the version of Spark.
    Suite(
        "spark40",
        ("tests/spark",),
        environment=".venv-spark40",
        select="versions and not hdfs and not kafka and not any_spark",
        workers=1,
        is_second_run=True,
        is_urgent=True,
    ),
    # Next to Spark's own connector and Delta Lake, which are of this version here.
    Suite(
        "spark42",
        ("tests/spark/test_jvm_connector.py", "tests/spark/test_jvm_security.py", "tests/spark/test_delta_spark.py"),
        environment=".venv-spark42",
        select="not kafka",
        workers=1,
        is_second_run=True,
        is_urgent=True,
    ),
    # With a clock that stalls.
    Suite("slow-clock", SLICED, workers=1, arguments=("-p", "tests.slowclock"), is_second_run=True),
    Suite("packaging", (PACKAGING,), workers=1),
)
SUITES = (
    *TEST,
    Suite("check", (*UNIT, GOLDEN), select="not kafka and not full"),
    Suite("unit", ("tests/unit", "tests/twins", GOLDEN), select="not kafka"),
    Suite("simulator", ("tests/simulator",), workers=1),
    Suite("contract", ("tests/contract",)),
    Suite("crash", ("tests/crash",)),
    Suite("interop", ("tests/cli", "tests/interop", "tests/network"), without=(f"{CLUSTER}/",)),
    Suite("cluster", (CLUSTER, "tests/upgrade")),
    Suite("chaos", ("tests/chaos",)),
    # One-line changes of the program, each of which some test must notice.
    Suite("mutants", ("tests/mutants",), workers=1),
    # An hour of both cores.
    Suite("cluster-day", ("tests/cluster_day/test_day.py",), workers=1),
    Suite("applications", (*APPLICATIONS, "tests/packaging/test_outside_parts.py"), workers=1, is_urgent=True),
    *(
        Suite(
            f"applications{version}",
            ("tests/spark",),
            workers=1,
            environment=f".venv-spark{version}",
            select="not hdfs and not kafka and not any_spark",
            is_second_run=True,
            is_urgent=True,
        )
        for version in ("400", "40", "41", "42", "421")
    ),
    # Spark's own connector on Apache Kafka.
    Suite(
        "jvm",
        ("tests/spark/test_jvm_connector.py",),
        workers=1,
        environment=".venv-spark42",
        select="kafka",
        is_urgent=True,
    ),
)


@dataclass
class Outcome:
    """What the files of one suite came to."""

    suite: Suite
    counts: Counter[str] = field(default_factory=Counter)
    cost: Cost = field(default_factory=Cost)

    @property
    def failed(self) -> bool:
        return bool(self.counts["failed"] or self.counts["error"]) or not sum(self.counts.values())


class Run:
    """One call of this program: its results, and how it shows them."""

    def __init__(self, suites: Sequence[Suite], environment: str | None, arguments: Sequence[str]) -> None:
        if environment is not None:
            suites = [replace(suite, environment=environment) for suite in suites]
        self._suites = [replace(suite, arguments=(*suite.arguments, *arguments)) for suite in suites]
        self._outcomes = {suite.name: Outcome(suite) for suite in suites}
        self._times: list[tuple[float, str]] = []
        self._failures: list[str] = []
        self._known = read_costs()
        self.costs: dict[str, Cost] = {}
        self._began_s, self._ticks = time.monotonic(), read_host_ticks()

    def run(self, *, together: bool) -> None:
        """Run the suites, in one pool or one after the other."""
        for suites in [self._suites] if together else [[suite] for suite in self._suites]:
            size = max(suite.workers for suite in suites)
            with Parts() as parts:
                if any(suite.needs_parts for suite in suites):
                    parts.begin()
                pool = Pool(suites, size, self._known, self._show, ROOT)
                pool.run()
            if pool.is_ended_early:
                return

    def _show(self, result: FileResult) -> None:
        name = result.suite.prefix + result.file
        outcome = self._outcomes[result.suite.name]
        outcome.counts += result.counts
        outcome.cost += result.cost
        self.costs[name] = result.cost
        self._times += result.times
        for test, text in result.failures:
            self._failures.append(test)
            print(f"\n{f' {test} ':_^100}\n{text}\n", flush=True)
        at_s = time.monotonic() - self._began_s
        print(f"{at_s:6.0f}s {result.cost.cpu_s:6.1f} CPU s  {name}  {_counted(result.counts)}", flush=True)

    def summary(self, other_failures: Sequence[str], lint_s: float = 0.0) -> int:
        """Print what came of it and return the exit code. ``lint_s`` are the CPU seconds of lint."""
        for title, lines in (
            ("CPU and waiting seconds, next to tests/costs.json", comparison(self.costs, self._known)),
            ("slowest 10 tests", [f"{seconds:8.2f}s {test}" for seconds, test in sorted(self._times)[:-11:-1]]),
            ("suites", [*(self._line(outcome) for outcome in self._outcomes.values()), self._processors(lint_s)]),
            ("failures", [f"FAILED {test}" for test in (*self._failures, *other_failures)]),
        ):
            if lines:
                print(f"\n{f' {title} ':=^100}")
                print("\n".join(lines))
        print(f"KAFKALITE_SEED={SEED}")
        totals = sum((outcome.counts for outcome in self._outcomes.values()), Counter[str]())
        words = [f"{totals[outcome]} {outcome}" for outcome in OUTCOMES if totals[outcome]] or ["no tests ran"]
        print(f" {', '.join(words)} in {time.monotonic() - self._began_s:.2f}s ".center(100, "="), flush=True)
        return 1 if other_failures or any(outcome.failed for outcome in self._outcomes.values()) else 0

    def _line(self, outcome: Outcome) -> str:
        verdict = "FAILED" if outcome.failed else "ok"
        counts = _counted(outcome.counts) or "no tests"
        return f"{outcome.suite.name:<12} {verdict:<8} {counts}; {outcome.cost.cpu_s:.0f} CPU s"

    def _processors(self, lint_s: float) -> str:
        """Say what the host's processors did. The rest is starts of processes, outside parts, and other programs."""
        now, tick_s = read_host_ticks(), 1 / os.sysconf("SC_CLK_TCK")
        all_s, idle_s = (now.all - self._ticks.all) * tick_s, (now.idle - self._ticks.idle) * tick_s
        tests_s = sum(outcome.cost.cpu_s for outcome in self._outcomes.values())
        return (
            f"processors   {all_s:.0f} s: {idle_s:.0f} idle, {tests_s:.0f} for tests, {lint_s:.0f} for lint, "
            f"{all_s - idle_s - tests_s - lint_s:.0f} for the rest"
        )


class Lint:
    """``make lint``, next to the tests. Its output is shown at the end."""

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            ["make", "--no-print-directory", "lint"], cwd=ROOT, stdout=self._output, stderr=subprocess.STDOUT
        )

        self.used_s = 0.0

    def failures(self) -> list[str]:
        """Wait for its end, print its output, and return what failed."""
        before_s = _children_s()
        code = self._process.wait()
        self.used_s = _children_s() - before_s
        self._output.seek(0)
        print(f"\n{' lint ':=^100}\n{self._output.read().decode(errors='replace')}", flush=True)
        return ["make lint"] if code else []


def _children_s() -> float:
    """Return the CPU seconds of the children that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own, extra = arguments[:split], arguments[split + 1 :]
    parser = argparse.ArgumentParser(description="Run the test suites and sum them up.")
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help="suites to run, one after the other; without: those of make test, in one pool",
    )
    parser.add_argument("--list", action="store_true", help="print the suites' names and end")
    parser.add_argument("--lint", action="store_true", help="run make lint next to the tests")
    parser.add_argument("--environment", metavar="DIRECTORY", help="virtual environment for all suites, not their own")
    parser.add_argument("--write-costs", action="store_true", help=f"write what the files cost to {COSTS_FILE.name}")
    options = parser.parse_args(own)
    by_name = {suite.name: suite for suite in SUITES}
    if unknown := [name for name in options.suites if name not in by_name]:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(by_name)}")
    if options.list:
        print("\n".join(f"{suite.name}: {' '.join(suite.folders)}" for suite in SUITES))
        return 0
    print(f"KAFKALITE_SEED={SEED}", flush=True)
    # Some hundred processes would compile the same modules each for itself.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # The outside parts are children of this process.
    class_archives.install()
    lint = Lint() if options.lint else None
    run = Run([by_name[name] for name in options.suites] or TEST, options.environment, extra)
    run.run(together=not options.suites)
    failures = lint.failures() if lint is not None else []
    code = run.summary(failures, lint.used_s if lint is not None else 0.0)
    if options.write_costs and code == 0:
        write_costs({**read_costs(), **run.costs} if options.suites else run.costs)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
