"""The recipes of docs/consumers.md, killed at random moments: the first loses nothing, the second repeats nothing.

Both run as they stand in ``docs/examples/``, two processes in one group. In the soak they are killed until a kill hits
between processing and commit: the first recipe has then repeated something, the second has left something out.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED, SOAK

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
KILLS = 100 if SOAK else 4
RECORDS = 2000 * KILLS
MOST_RUNS = 6 if SOAK else 1
PARTITIONS = 4

pytestmark = [pytest.mark.timeout(600)]


class Recipe:
    """Two processes that run one recipe in one group."""

    def __init__(self, name: str, bootstrap: str, directory: Path) -> None:
        self.name = name
        self._bootstrap, self._directory = bootstrap, directory
        self._processes = [self._start(number) for number in range(2)]
        self._starts = 0

    def _start(self, number: int) -> ChildProcess:
        command = [
            sys.executable, str(EXAMPLES / f"{self.name}.py"),
            self._bootstrap, f"{self.name}-group", f"instance-{number}", "work", str(self._results(number)),
        ]  # fmt: skip
        return ChildProcess(command, self._directory, f"{self.name}-{number}")

    def _results(self, number: int) -> Path:
        return self._directory / f"{self.name}-{number}.results"

    def kill(self, number: int) -> None:
        """Kill one of the two, and start it again at once."""
        process = self._processes[number]
        assert process.running, f"it ended by itself{process.tail()}"
        process.kill()
        self._processes[number] = self._start(number)

    def processed(self) -> Counter[bytes]:
        """Return how often each record was processed. A kill may have cut off a line, which the next one continues."""
        files = [self._results(number) for number in range(2)]
        return Counter(line for file in files if file.exists() for line in file.read_bytes().split(b"\n")[:-1])

    def finish(self, committed: int) -> None:
        """Wait until the group has committed this many records, and end both processes."""
        with Consumer(bootstrap_servers=self._bootstrap, group_id=f"{self.name}-group") as observer:
            partitions = [("work", number) for number in range(PARTITIONS)]

            def all_committed() -> bool:
                found = observer.committed(partitions).values()
                return sum(each.offset for each in found if each is not None) == committed

            wait_until(all_committed, f"{committed} records to be committed", poll_s=0.05)
        time.sleep(0.2)  # the second recipe processes after its commit
        for process in self._processes:
            assert process.running, f"it ended by itself{process.tail()}"
            process.kill()


def runs(name: str, directory: Path) -> Iterator[Counter[bytes]]:
    """Run a recipe on a broker of its own, again and again: whether a kill hits the moment that counts is chance."""
    rng = random.Random(SEED)
    for number in range(MOST_RUNS):
        own = directory / f"run-{number}"
        with BrokerProcess(own / "data") as broker:
            yield run(name, broker, own, rng)


def run(name: str, broker: BrokerProcess, directory: Path, rng: random.Random) -> Counter[bytes]:
    """Run a recipe over all records with kills at random moments; return how often each was processed."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("work", PARTITIONS, 1)
    recipe = Recipe(name, broker.bootstrap, directory)
    share = RECORDS // KILLS
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for kill in range(KILLS):
            before = recipe.processed().total()
            for number in range(kill * share, (kill + 1) * share):
                producer.send("work", b"%07d" % number, partition=number % PARTITIONS)
            producer.flush(PATIENCE_S)
            # In the midst of the work, however fast the machine is: after some of it, before the rest. The second
            # recipe may leave so much out that this much does not come.
            until = time.monotonic() + 10
            wanted = before + rng.randint(1, share - 1)
            while recipe.processed().total() < wanted and time.monotonic() < until:
                time.sleep(0.001)
            recipe.kill(rng.randrange(2))
    recipe.finish(RECORDS)
    return recipe.processed()


def test_at_least_once(tmp_path: Path) -> None:
    for processed in runs("at_least_once", tmp_path):
        lost = [number for number in range(RECORDS) if not processed[b"%07d" % number]]
        assert lost == [], f"seed {SEED}: {len(lost)} records were left out"
        if any(count > 1 for count in processed.values()):
            return
    assert not SOAK, "no kill hit between processing and commit: nothing is shown"


def test_at_most_once(tmp_path: Path) -> None:
    for processed in runs("at_most_once", tmp_path):
        repeated = [line for line, count in processed.items() if count > 1]
        assert repeated == [], f"seed {SEED}: {len(repeated)} records were processed twice"
        if len(processed) < RECORDS:
            return
    assert not SOAK, "no kill hit between commit and processing: nothing is shown"
