"""How many instructions does a broker execute for a small request, with and without metrics, or an authorizer?

    python -m bench.instructions [--with authorizer] [TREE ...]

Valgrind (callgrind) counts the instructions of the whole broker process, so a busy machine changes little: rounds on
two cores with forty runnable processes differed by less than a percent. A tree is a clone with a ``.venv``; without one
it is this tree. Its broker runs twice, without and with ``metrics.listener``, or with the authorizer. With that, ACLs
give the client its rights, and a hundred others theirs. Each request is ready-made and is sent alone. What the broker's
timers do in the same time without requests is subtracted: with metrics they look at the event loop ten times a second,
which is no cost of a request.

Instructions are no time: memory and system calls cost what is not counted here. They compare two versions of the same
code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.commits import commit_request, find_coordinators
from bench.raw_load import Link, batch_of, check_produced, fetch_request, metadata_request, produce_request
from bench.secured_pair import AUTHORIZER, give_rights
from spark_kafkalite import Admin
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.free_ports import free_ports

ROOT = Path(__file__).parent.parent
# CPython adapts its code to what runs; then it executes the same for each request.
_WARM_UP, _REQUESTS, _ROUNDS = 300, 200, 5
# What the broker's process runs first: its clocks are as slow as its code is under callgrind. Otherwise its timers
# would come thirty times as often between two requests as they do without callgrind.
_SLOW_CLOCK = """
import selectors
import time

def slowed(clock):
    began = clock()
    return lambda: began + (clock() - began) / 30

time.monotonic, time.perf_counter = slowed(time.monotonic), slowed(time.perf_counter)
select = selectors.EpollSelector.select
selectors.EpollSelector.select = lambda self, timeout=None: select(self, timeout and timeout * 30)
"""
# Under callgrind everything takes some fifty times as long.
_START_S = 900.0
_SETTINGS = {"metrics": {"metrics.listener": "127.0.0.1:0"}, "authorizer": AUTHORIZER}


class CountedBroker:
    """A broker whose instructions are counted."""

    def __init__(self, process: ChildProcess, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self._process = process
        self._environment = {**os.environ, "TMPDIR": str(directory)}

    def count(self) -> None:
        """Begin to count; without that a broker starts several times as fast."""
        self._control("--instr=on")

    def _control(self, option: str) -> str:
        return subprocess.run(
            ["callgrind_control", option, str(self._process.pid)],
            capture_output=True, text=True, check=True, env=self._environment,
        ).stdout  # fmt: skip

    def instructions(self) -> int:
        """Return how many all threads have executed so far."""
        shown = self._control("-e")
        return sum(int(count.replace(",", "")) for count in re.findall(r"(?m)^ *Th +\d+ +([\d,]+)", shown))

    def each(self, link: Link, request: bytes) -> float:
        """Return the instructions for one such request, less those that the broker executes without one."""
        before, began_s = self.instructions(), time.monotonic()
        for _ in range(_REQUESTS):
            link.call(request)
        after, took_s = self.instructions(), time.monotonic() - began_s
        time.sleep(took_s)
        return (2 * after - before - self.instructions()) / _REQUESTS


@contextmanager
def counted_broker(tree: Path, settings: Mapping[str, str]) -> Iterator[CountedBroker]:
    """Run the broker of a tree under callgrind. Raises ChildFailed if it does not start."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as name:
        directory = Path(name)
        bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
        command = [
            "valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={directory}/out", "--instr-atstart=no",
            # -P: without it the modules of the working directory would come first.
            str(tree / ".venv" / "bin" / "python"), "-P", "-m", "spark_kafkalite.cli", "broker",
            "--override", f"listeners=PLAINTEXT://{bootstrap}", "--override", f"log.dirs={directory}/data",
            "--override", "log.initial.task.delay.ms=86400000",
            *(part for name, value in settings.items() for part in ("--override", f"{name}={value}")),
        ]  # fmt: skip
        (directory / "sitecustomize.py").write_text(_SLOW_CLOCK)
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": str(directory), "PYTHONPATH": str(directory)}
        process = ChildProcess(command, directory / "output", "broker", environment=environment)
        try:
            process.wait_until(lambda: "ready on" in process.stdout_text(), _START_S, "reporting that it is ready")
            yield CountedBroker(process, bootstrap, directory)
        finally:
            process.kill()


def measured(tree: Path, settings: Mapping[str, str]) -> dict[str, float]:
    """Return the instructions of one request of each kind: the median of some rounds."""
    with counted_broker(tree, settings) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("read", 1)
        if settings is AUTHORIZER:
            give_rights(broker.bootstrap, "read")
        find_coordinators(broker.bootstrap, ["group 0"])
        broker.count()
        produce = produce_request("read", [0], batch_of(1, timestamp_ms=1_780_000_000_000))
        requests = {
            "produce of one record": produce,
            "fetch of one record": fetch_request("read", [(0, 0)], 1),
            "metadata of one topic": metadata_request("read"),
            "commit of one offset": commit_request("group 0", [0]),
        }
        with Link(broker.bootstrap, timeout_s=_START_S) as link:
            check_produced(link.call(produce))
            for request in requests.values():
                for _ in range(_WARM_UP):
                    link.call(request)
            figures: dict[str, list[float]] = {name: [] for name in requests}
            for _ in range(_ROUNDS):
                for name, request in requests.items():
                    figures[name].append(broker.each(link, request))
        return {name: statistics.median(found) for name, found in figures.items()}


def main() -> int:
    """Measure the trees, one after the other, and print a line for each kind of request."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], help="clones with a .venv")
    parser.add_argument("--with", dest="what", choices=_SETTINGS, default="metrics", help="default: metrics")
    arguments = parser.parse_args()
    trees = [tree.resolve() for tree in arguments.trees]
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: apt-get install valgrind", file=sys.stderr)
        return 1
    print(f"{'instructions a request':40} {'without':>10} {'with ' + arguments.what:>15} {'more':>8}")
    for tree in trees:
        found, found_with = measured(tree, {}), measured(tree, _SETTINGS[arguments.what])
        for request, without in found.items():
            more = found_with[request] - without
            print(f"{tree.name + ': ' + request:40} {without:10,.0f} {found_with[request]:15,.0f} {more:8,.0f}")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
