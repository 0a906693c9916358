"""Runs the test suites in order, each in its own pytest, and sums them up as one.

Suites are separate runs because they differ in what they need: several processes or one, the newest PySpark or 4.2.0.
The last lines are the ten slowest tests of all suites, one line per suite, and pytest's own kind of summary. The exit
code is 0 only when every suite ran something and nothing failed: a suite that collects no test counts as failed, and so
does a folder of tests that no suite names.

    python scripts/run_tests.py [--list] [--environment DIRECTORY] [SUITE ...] [-- PYTEST_ARGUMENT ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ("failed", "error", "passed", "skipped")


@dataclass(frozen=True)
class Suite:
    """Test folders, or files, that run in one pytest. ``workers`` 1 means one process; more share the folders' files,
    those with tests marked slow first. What ``without`` names in them is left to another suite."""

    name: str
    folders: tuple[str, ...]
    without: tuple[str, ...] = ()
    workers: int = 1
    environment: str = ".venv"
    select: str = ""
    # Part of another one, or of ``make soak`` alone.
    only_by_name: bool = False


# They hold times of the clock against bounds, or need both cores themselves: no other test may run beside them. What
# holds times of the processor may have company.
ALONE = (
    "tests/interop/broker/test_cold_reader.py",
    "tests/interop/broker/test_pytest_plugin.py",
    "tests/interop/broker/test_visibility.py",
    "tests/interop/groups/test_protocol.py",
    "tests/interop/hostile/test_crowds.py",
    "tests/interop/hostile/test_limits.py",
    "tests/interop/hostile/test_mutated_requests.py",
    "tests/interop/hostile/test_records.py",
    "tests/interop/registry/test_outage.py",
    "tests/interop/streams/test_stream_storm.py",
)
# Clusters of several brokers: two side by side wait more than they compute.
CLUSTER = "tests/interop/cluster"
# In the order in which a failure is cheapest to see. More workers than cores where tests wait as long as they compute.
SUITES = (
    Suite("unit", ("tests/unit", "tests/twins", "tests/golden", "tests/cluster_day"), workers=2, select="not kafka"),
    Suite("simulator", ("tests/simulator",)),
    Suite("golden", ("tests/golden",), workers=3, select="kafka"),
    Suite("contract", ("tests/contract",), workers=3),
    Suite("crash", ("tests/crash",), workers=2),
    Suite("interop", ("tests/cli", "tests/interop", "tests/network"), without=(*ALONE, CLUSTER), workers=4),
    Suite("clusters", ("tests/chaos", CLUSTER), workers=2),
    Suite("cluster", (CLUSTER,), only_by_name=True),
    Suite("chaos", ("tests/chaos",), only_by_name=True),
    # An hour of both cores; its pure parts are tested with the units.
    Suite("cluster-day", ("tests/cluster_day/test_day.py",), only_by_name=True),
    Suite("alone", ALONE),
    Suite("spark", ("tests/spark", "tests/jobs"), workers=2),
    # What depends on the version of Spark.
    Suite(
        "spark42",
        ("tests/spark",),
        workers=2,
        environment=".venv-spark42",
        select="not hdfs and not kafka and not any_spark",
    ),
    # What the soak does more of with Spark.
    Suite(
        "applications",
        (
            "tests/spark/test_job_audit.py",
            "tests/spark/test_job_compaction.py",
            "tests/spark/test_job_errors.py",
            "tests/spark/test_job_hdfs.py",
            "tests/spark/test_job_kills.py",
            "tests/spark/test_job_lease.py",
            "tests/spark/test_kills.py",
            "tests/spark/test_memory.py",
            "tests/spark/test_mirror.py",
            "tests/spark/test_programs.py",
            "tests/spark/test_recipes.py",
            "tests/spark/test_replay_runs.py",
        ),
        only_by_name=True,
    ),
    Suite("applications42", ("tests/spark/test_programs.py",), environment=".venv-spark42", only_by_name=True),
    # Spark's own connector on Apache Kafka; on our broker it is in spark42, which starts no other one.
    Suite(
        "jvm",
        ("tests/spark/test_jvm_connector.py",),
        environment=".venv-spark42",
        select="kafka",
        only_by_name=True,
    ),
    Suite("packaging", ("tests/packaging",)),
)


@dataclass(frozen=True)
class Result:
    """How one suite ended. ``slowest`` holds (seconds, test)."""

    suite: Suite
    exit_code: int
    seconds: float
    counts: dict[str, int]
    slowest: list[tuple[float, str]]

    @property
    def failed(self) -> bool:
        return self.exit_code != 0


def run(suite: Suite, extra: list[str]) -> Result:
    """Run one suite with its output shown as it comes."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-tests-") as scratch:
        report = Path(scratch) / "report.xml"
        command = [
            interpreter(suite),
            "-m",
            "pytest",
            *suite.folders,
            f"--junit-xml={report}",
            "--durations=0",
        ]
        command += ["--durations-min=5.0", *(f"--ignore={path}" for path in suite.without)]
        if suite.workers > 1:
            command += ["-n", str(suite.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        if suite.select:
            command += ["-m", suite.select]
        print(f"\n### {suite.name}: {' '.join(suite.folders)} ({suite.environment})", flush=True)
        started = time.monotonic()
        exit_code = subprocess.run([*command, *extra], cwd=ROOT, check=False).returncode
        seconds = time.monotonic() - started
        counts, slowest = read_report(report)
    return Result(suite, exit_code, seconds, counts, slowest)


def interpreter(suite: Suite) -> str:
    return str(ROOT / suite.environment / "bin" / "python")


def read_report(path: Path) -> tuple[dict[str, int], list[tuple[float, str]]]:
    """Return the outcomes' counts and every test with its time from a JUnit report; nothing when pytest wrote none."""
    counts = dict.fromkeys(OUTCOMES, 0)
    times: list[tuple[float, str]] = []
    if not path.exists():
        return counts, times
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = next(
            (name for tag, name in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")) if tag in kinds),
            "passed",
        )
        counts[outcome] += 1
        times.append((float(case.get("time", "0")), f"{case.get('classname')}::{case.get('name')}"))
    return counts, times


def folders_without_suite() -> list[str]:
    """Return the folders with tests that no suite would run."""
    named = {folder for suite in SUITES for folder in suite.folders}
    found = {"/".join(path.relative_to(ROOT).parts[:2]) for path in (ROOT / "tests").rglob("test_*.py")}
    return sorted(found - named)


def summary(results: list[Result]) -> str:
    """Return the last line: counts and time of all suites in pytest's words."""
    totals = {outcome: sum(result.counts[outcome] for result in results) for outcome in OUTCOMES}
    words = [f"{count} {outcome}" for outcome, count in totals.items() if count] or ["no tests ran"]
    return f" {', '.join(words)} in {sum(result.seconds for result in results):.2f}s ".center(100, "=")


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own, extra = arguments[:split], arguments[split + 1 :]
    parser = argparse.ArgumentParser(description="Run the test suites and sum them up.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="suites to run; all when none is named")
    parser.add_argument("--list", action="store_true", help="print the suites' names and end")
    parser.add_argument("--environment", metavar="DIRECTORY", help="virtual environment for all suites, not their own")
    options = parser.parse_args(own)
    by_name = {suite.name: suite for suite in SUITES}
    if options.environment:
        by_name = {name: replace(suite, environment=options.environment) for name, suite in by_name.items()}
    if unknown := [name for name in options.suites if name not in by_name]:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(by_name)}")
    if options.list:
        print("\n".join(f"{suite.name}: {' '.join(suite.folders)}" for suite in SUITES))
        return 0
    if stray := folders_without_suite():
        print(f"tests that no suite runs: {', '.join(stray)}; name them in {Path(__file__).name}", file=sys.stderr)
        return 1
    default = [suite.name for suite in SUITES if not suite.only_by_name]
    results = [run(by_name[name], extra) for name in options.suites or default]
    slowest = sorted((entry for result in results for entry in result.slowest), reverse=True)[:10]
    print(f"\n{' slowest 10 tests ':=^100}")
    for seconds, test in slowest:
        print(f"{seconds:8.2f}s {test}")
    print(f"{' suites ':=^100}")
    for result in results:
        verdict = f"FAILED (pytest exit code {result.exit_code})" if result.failed else "ok"
        counts = ", ".join(f"{count} {outcome}" for outcome, count in result.counts.items() if count)
        print(f"{result.suite.name:<12} {result.seconds:7.1f}s  {verdict:<8} {counts}")
    print(summary(results), flush=True)
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
