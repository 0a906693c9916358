"""Real requests of every served API and version, damaged, by the ten thousand, beside a well-behaved client.

The broker answers or closes each of them, says nothing that is not a response, keeps its memory, keeps the client's
latency near what it was, and keeps exactly what the client wrote. What damaged produces left in their topics is
readable: nothing gets into a log that readers stumble over.

``KAFKALITE_MUTATION_SEED`` repeats a run; ``KAFKALITE_SOAK=1`` sends a million.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Consumer
from spark_kafkalite.testing.batches import make_batch, values_of
from spark_kafkalite.testing.cluster import BrokerProcess
from tests.interop.hostile.mutating_peer import DAMAGED_TOPIC, GOOD_VALUES, RESEALED_TOPIC
from tests.interop.support.raw_client import RawClient

SOAK = bool(os.environ.get("KAFKALITE_SOAK"))
FRAMES = 1_000_000 if SOAK else 100_000
SEED = int(os.environ.get("KAFKALITE_MUTATION_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
CONNECTIONS = 8
MEGABYTE = 1_000_000
PROJECT = Path(__file__).parents[3]
# Nobody guesses this name by flipping bits.
GOOD_TOPIC = "the-well-behaved-clients-own-topic"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # Requests that lie may ask for topics: these are few partitions each, and none comes into being by asking for it.
    overrides = {
        "auto.create.topics.enable": False,
        "max.partitions.per.request": 20,
        "offsets.topic.num.partitions": 5,
    }
    with BrokerProcess(tmp_path / "data", overrides=overrides) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            for topic in (DAMAGED_TOPIC, RESEALED_TOPIC, GOOD_TOPIC):
                admin.create_topic(topic, 1, 1)
        yield running


class WellBehaved:
    """Produces a record and fetches it, again and again, and notes how long that took."""

    def __init__(self, bootstrap: str) -> None:
        self._client = RawClient(bootstrap, 60)
        self.written: list[bytes] = []

    def turn_s(self) -> float:
        """Return the time of one produce and one fetch."""
        value = b"good %d" % len(self.written)
        batch = make_batch([value], timestamp_ms=time.time_ns() // 1_000_000)
        began = time.monotonic()
        produced = self._client.produce(GOOD_TOPIC, batch)
        assert (produced.error_code, produced.base_offset) == (0, len(self.written))
        fetched = self._client.fetch(GOOD_TOPIC, produced.base_offset, max_wait_ms=0)
        took_s = time.monotonic() - began
        assert values_of(fetched.records) == [(produced.base_offset, value)]
        self.written.append(value)
        return took_s

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def good(broker: BrokerProcess) -> Iterator[WellBehaved]:
    client = WellBehaved(broker.bootstrap)
    yield client
    client.close()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def read_with_ours(bootstrap: str, topic: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        # Not from 0: a damaged request may have been one to delete records, or for a short retention.
        consumer.seek_to_beginning()
        (end,) = consumer.end_offsets([(topic, 0)]).values()
        until = time.monotonic() + 60
        while consumer.position((topic, 0)) < end and time.monotonic() < until:
            values += [record.value for record in consumer.poll(500, 10_000)]
        assert consumer.position((topic, 0)) == end
    return values


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    until = time.monotonic() + 60
    while len(values) < count and time.monotonic() < until:
        for message in consumer.consume(10_000, 0.5):
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


@pytest.mark.slow
@pytest.mark.timeout(3000 if SOAK else 240)
def test_damaged_requests_harm_nobody(broker: BrokerProcess, good: WellBehaved) -> None:
    print(f"seed {SEED}: KAFKALITE_MUTATION_SEED={SEED} repeats this run")
    for _ in range(200):
        good.turn_s()
    before_s: list[float] = []
    until = time.monotonic() + 2
    while time.monotonic() < until:
        before_s.append(good.turn_s())
        time.sleep(0.002)
    resident_before = broker.resident_bytes()

    command = [sys.executable, "-m", "tests.interop.hostile.mutating_peer"]
    peer = subprocess.Popen(
        [*command, broker.bootstrap, str(SEED), str(FRAMES), str(CONNECTIONS)],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    during_s: list[float] = []
    most_resident = resident_before
    began = time.monotonic()
    try:
        while peer.poll() is None:
            during_s.append(good.turn_s())
            if len(during_s) % 20 == 0:
                most_resident = max(most_resident, broker.resident_bytes())
            time.sleep(0.002)
    finally:
        peer.kill()
    output, errors = peer.communicate()
    took_s = time.monotonic() - began
    assert peer.returncode == 0, f"seed {SEED}: {errors}\n{broker.tail()}"
    outcome = json.loads(output)
    for _ in range(50):
        good.turn_s()
    p99_before, p99_during = percentile(before_s, 0.99), percentile(during_s, 0.99)
    grown = most_resident - resident_before
    print(
        f"{outcome}\n{took_s:.1f} s; {len(during_s)} turns of the good client meanwhile; p99 "
        f"{p99_before * 1000:.1f} ms before, {p99_during * 1000:.1f} ms during, slowest {max(during_s) * 1000:.0f} ms; "
        f"resident {resident_before / MEGABYTE:.1f} MB and at most {grown / MEGABYTE:.1f} MB more"
    )
    assert broker.running
    assert "Traceback" not in broker.stderr_path.read_text(encoding="utf-8"), f"seed {SEED}: a bug in a handler"
    assert outcome["sent"] == FRAMES
    assert outcome["fewest_per_api"] > 500
    # Some damage leaves a valid request, some does not; a run that sees only one of the two tests nothing.
    assert outcome["outcomes"]["answered"] > FRAMES / 10
    assert outcome["outcomes"]["closed"] > FRAMES / 10
    assert grown < 40 * MEGABYTE, f"seed {SEED}"
    assert p99_during < 10 * p99_before + 0.050, f"seed {SEED}"
    assert max(during_s) < 2, f"seed {SEED}"

    assert read_with_ours(broker.bootstrap, GOOD_TOPIC) == good.written
    # The checksum keeps damaged records out; those whose checksum was made right may be anything well-formed.
    assert set(read_with_ours(broker.bootstrap, DAMAGED_TOPIC)) <= set(GOOD_VALUES), f"seed {SEED}"
    resealed = read_with_ours(broker.bootstrap, RESEALED_TOPIC)
    assert set(resealed) - set(GOOD_VALUES), "no batch with a damaged inside was well-formed: nothing was tested"
    assert read_with_confluent(broker.bootstrap, RESEALED_TOPIC, len(resealed)) == resealed, f"seed {SEED}"
    # What is in the log is read again at the next start.
    broker.kill()
    broker.start()
    assert read_with_ours(broker.bootstrap, GOOD_TOPIC) == good.written
    assert read_with_ours(broker.bootstrap, RESEALED_TOPIC) == resealed, f"seed {SEED}"
