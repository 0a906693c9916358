"""The broker is killed with SIGKILL while it rolls segments, lets old ones go, deletes records and compacts.

Segments of some records, retention of some segments, a cleaner that never rests: wherever the kill comes, some of these
is half done. After every start the broker must not complain and no log start may have gone back. At the end every
acknowledged record above the log start is there once and in order, and of a compacted topic the last record of every
key, at the offset that it was given. (``test_kill_broker`` does the same for what producers and consumers see.)

``KAFKALITE_UPKEEP_SEED`` repeats the moments of a run (not the kernel's scheduling), ``KAFKALITE_SOAK=1`` kills 300
times.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from spark_kafkalite.testing.cluster import BrokerProcess
from tests.crash.examine import Examination
from tests.crash.workload import Plan, Workload

SOAK = bool(os.environ.get("KAFKALITE_SOAK"))
ROUNDS = 300 if SOAK else 20
SEED = int(os.environ.get("KAFKALITE_UPKEEP_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)

_TINY = {"segment.bytes": "15000", "index.interval.bytes": "300", "file.delete.delay.ms": "100"}
_EAGER = {"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "500"}
PLANS = (
    Plan("rolled", _TINY),
    Plan("short", {**_TINY, "retention.bytes": "40000"}),
    Plan("aged", {**_TINY, "retention.ms": "600", "segment.ms": "300"}),
    Plan("trimmed", _TINY, is_trimmed=True),
    Plan("compacted", {**_TINY, **_EAGER, "cleanup.policy": "compact"}, keys=30),
    Plan("aged-compacted", {**_TINY, **_EAGER, "cleanup.policy": "compact,delete", "retention.ms": "3000"}, keys=30),
)
OVERRIDES = {
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.retention.check.interval.ms": 40,
    "log.initial.task.delay.ms": 20,
    "log.cleaner.backoff.ms": 20,
    "auto.create.topics.enable": False,
}


@pytest.mark.slow
@pytest.mark.timeout(3000 if SOAK else 150)
def test_kill_9_during_upkeep_leaves_no_log_half_changed(tmp_path: Path) -> None:
    print(f"seed {SEED}: KAFKALITE_UPKEEP_SEED={SEED} repeats the moments of the kills")
    chance = random.Random(SEED)
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, overrides=OVERRIDES) as broker:
        workload = Workload(broker.bootstrap, data_dir, SEED, PLANS)
        try:
            for number in range(ROUNDS):
                _wait_for_progress(workload)
                time.sleep(chance.uniform(0.0, 0.4))
                broker.kill()
                broker.start()
                after = Examination(broker, data_dir, workload, workload.promise())
                after.check_output()
                problems = after.problems + workload.problems()
                assert problems == [], f"KAFKALITE_UPKEEP_SEED={SEED}, kill {number + 1}"
        finally:
            workload.stop()
        starts = workload.starts.copy()
        examination = Examination(broker, data_dir, workload, workload.promise(power_stays=True))
        examination.look()
    print(f"{ROUNDS} kills; log starts {starts}; records {examination.found}")
    assert examination.problems + workload.problems() == [], f"KAFKALITE_UPKEEP_SEED={SEED}"
    # All of it was really going on.
    assert all(starts[topic] > 100 for topic in ("short", "aged", "trimmed", "aged-compacted"))
    assert examination.found["compacted"] < workload.writers["compacted"].sent / 2


def _wait_for_progress(workload: Workload) -> None:
    """Wait until every producer has been answered since the last start."""
    before = {topic: len(writer.acknowledged) for topic, writer in workload.writers.items()}
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if all(len(writer.acknowledged) > before[topic] for topic, writer in workload.writers.items()):
            return
        time.sleep(0.005)
