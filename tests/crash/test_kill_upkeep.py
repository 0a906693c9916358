"""The broker is killed with SIGKILL while it rolls segments, lets old ones go, deletes records and compacts.

Segments of some records, retention of some segments, a cleaner that never rests: wherever the kill comes, some of these
is half done. After every start the broker must not complain and no log start may have gone back. At the end every
acknowledged record above the log start is there once and in order, and of a compacted topic the last record of every
key, at the offset that it was given. (``test_kill_broker`` does the same for what producers and consumers see.)

``KAFKALITE_SEED`` repeats the moments of a run (not the kernel's scheduling). The soak kills 300 times.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.crash import faulty_broker
from tests.crash.examine import Examination
from tests.crash.workload import Plan, Workload
from tests.patience import wait_until
from tests.seeds import SEED, SOAK

ROUNDS = 300 if SOAK else 4
# Topics whose logs begin later and later.
MOVING = ("short", "aged", "trimmed", "aged-compacted")

_TINY = {"segment.bytes": "15000", "index.interval.bytes": "300", "file.delete.delay.ms": "100"}
_EAGER = {"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "500"}
PLANS = (
    Plan("rolled", _TINY),
    Plan("short", {**_TINY, "retention.bytes": "40000"}),
    Plan("aged", {**_TINY, "retention.ms": "600", "segment.ms": "300"}),
    Plan("trimmed", _TINY, is_trimmed=True),
    Plan("compacted", {**_TINY, **_EAGER, "cleanup.policy": "compact"}, keys=30),
    # So many keys that their last records grow old: a cleaned segment is as young as its youngest record.
    Plan("aged-compacted", {**_TINY, **_EAGER, "cleanup.policy": "compact,delete", "retention.ms": "2000"}, keys=500),
)
OVERRIDES = {
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.retention.check.interval.ms": 40,
    "log.initial.task.delay.ms": 20,
    "log.cleaner.backoff.ms": 20,
    "auto.create.topics.enable": False,
}

pytestmark = [pytest.mark.timeout(3000 if SOAK else 600)]


class Rounds:
    """Kills of one broker under one workload; ``problems`` holds what came of it."""

    def __init__(self, data_dir: Path, seed: int, bug: str | None = None) -> None:
        self.kills = 0
        self.problems: list[str] = []
        self.starts: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.found: dict[str, int] = {}
        self._data_dir = data_dir
        self._seed = seed
        self._bug = bug

    def run(self, rounds: int) -> None:
        """Kill so often, or until something is wrong, and look at everything at the end."""
        prefix = faulty_broker.command_prefix(self._bug)
        with BrokerProcess(self._data_dir, overrides=OVERRIDES, command_prefix=prefix) as broker:
            workload = Workload(broker.bootstrap, self._data_dir, self._seed, PLANS)
            try:
                self._kill(broker, workload, rounds)
                if not self.problems:
                    # All of it was really going on.
                    wait_until(
                        lambda: workload.problems() or all(workload.starts[topic] > 100 for topic in MOVING),
                        lambda: f"log starts to move; they are {workload.starts}",
                    )
                    _wait_for_cleaning(broker)
            finally:
                workload.stop()
            if not self.problems:
                examination = Examination(broker, self._data_dir, workload, workload.promise(power_stays=True))
                examination.look()
                self.problems = examination.problems + workload.problems()
                self.found = examination.found
        self.starts = workload.starts
        self.sent = {topic: writer.sent for topic, writer in workload.writers.items()}

    def _kill(self, broker: BrokerProcess, workload: Workload, rounds: int) -> None:
        chance = random.Random(self._seed)
        while self.kills < rounds and not self.problems:
            _wait_for_progress(workload)
            if chance.random() < 0.3:
                # A cleaner's process takes a while to start; afterwards its work is put in the place of the old.
                _wait_for_cleaning(broker)
                time.sleep(chance.uniform(0.0, 0.1))
            else:
                time.sleep(chance.uniform(0.0, 0.4))
            broker.kill()
            self.kills += 1
            broker.start()
            after = Examination(broker, self._data_dir, workload, workload.promise())
            after.check_output()
            self.problems = after.problems + workload.problems()


def test_kill_9_during_upkeep_leaves_no_log_half_changed(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "data", SEED)
    rounds.run(ROUNDS)
    print(f"{rounds.kills} kills; log starts {rounds.starts}; records {rounds.found}, sent {rounds.sent}")
    assert rounds.problems == [], f"seed {SEED}, after {rounds.kills} kills"
    assert rounds.found["compacted"] < rounds.sent["compacted"]


def test_broker_that_forgets_log_starts_is_found(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "data", SEED, "forget-log-starts")
    rounds.run(15)
    # By the records that are back, or by the broker itself, which misses those that retention has removed.
    found = ("log start went", "offsets are missing")
    assert any(text in problem for problem in rounds.problems for text in found), rounds.problems


def _wait_for_progress(workload: Workload) -> None:
    """Wait until every producer has been answered since the last start."""
    before = {topic: len(writer.acknowledged) for topic, writer in workload.writers.items()}

    def unanswered() -> list[str]:
        return [topic for topic, writer in workload.writers.items() if len(writer.acknowledged) <= before[topic]]

    wait_until(lambda: workload.problems() or not unanswered(), lambda: f"acknowledgements of {unanswered()}")


def _wait_for_cleaning(broker: BrokerProcess) -> None:
    """Wait until the cleaner has ended with a log since the last start; the workload must go on."""
    wait_until(
        lambda: "cleaned compacted-0" in broker.stderr_path.read_text(encoding="utf-8"),
        lambda: f"compacted-0 to be cleaned{broker.tail()}",
        poll_s=0.02,
    )
