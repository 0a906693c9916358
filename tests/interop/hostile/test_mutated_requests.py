"""Real requests of every served API and version, damaged, by the thousand, next to a well-behaved client.

The broker answers or closes each of them, sends only responses, keeps its memory, and keeps exactly what the client
wrote. What damaged produces left in their topics is readable: no record gets into a log that readers cannot read.
``bench/latency.py`` measures the client's latency next to them. The soak sends a million.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Consumer
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.hostile.mutating_peer import DAMAGED_TOPIC, GOOD_VALUES, RESEALED_TOPIC
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED, SOAK

FRAMES = 1_000_000 if SOAK else 10_000
CONNECTIONS = 8
MEGABYTE = 1_000_000
PROJECT = Path(__file__).parents[3]
# No flipped bits make this name.
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
    """Produces a record and fetches it, again and again."""

    def __init__(self, bootstrap: str) -> None:
        self._client = RawClient(bootstrap, PATIENCE_S)
        self.written: list[bytes] = []

    def turn(self) -> None:
        value = b"good %d" % len(self.written)
        batch = make_batch([value], timestamp_ms=time.time_ns() // 1_000_000)
        produced = self._client.produce(GOOD_TOPIC, batch)
        assert (produced.error_code, produced.base_offset) == (0, len(self.written))
        fetched = self._client.fetch(GOOD_TOPIC, produced.base_offset, max_wait_ms=0)
        assert values_of(fetched.records) == [(produced.base_offset, value)]
        self.written.append(value)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def good(broker: BrokerProcess) -> Iterator[WellBehaved]:
    client = WellBehaved(broker.bootstrap)
    yield client
    client.close()


def read_with_ours(bootstrap: str, topic: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        # Not from 0: a damaged request may have been one to delete records, or for a short retention.
        consumer.seek_to_beginning()
        (end,) = consumer.end_offsets([(topic, 0)]).values()

        def all_read() -> bool:
            values.extend(record.value for record in consumer.poll(500, 10_000))
            return bool(consumer.position((topic, 0)) == end)

        wait_until(all_read, lambda: f"{topic} read up to {end}, it is at {consumer.position((topic, 0))}", poll_s=0)
    return values


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    failures = []

    def all_read() -> bool:
        for message in consumer.consume(min(10_000, count - len(values)), 0.5):
            (failures if message.error() else values).append(message.error() or message.value())
        return len(values) + len(failures) >= count

    wait_until(all_read, lambda: f"{count} records, there are {len(values)}", poll_s=0)
    consumer.close()
    assert failures == []
    return values


@pytest.mark.timeout(3000 if SOAK else 600)
def test_damaged_requests_do_no_harm(broker: BrokerProcess, good: WellBehaved) -> None:
    for _ in range(200):
        good.turn()
    resident_before = broker.resident_bytes()

    command = [sys.executable, "-m", "tests.interop.hostile.mutating_peer"]
    peer = subprocess.Popen(
        [*command, broker.bootstrap, str(SEED), str(FRAMES), str(CONNECTIONS)],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    turns = 0
    most_resident = resident_before
    try:
        while peer.poll() is None:
            good.turn()
            turns += 1
            if turns % 20 == 0:
                most_resident = max(most_resident, broker.resident_bytes())
            time.sleep(0.002)
    finally:
        peer.kill()
    output, errors = peer.communicate()
    assert peer.returncode == 0, f"seed {SEED}: {errors}\n{broker.tail()}"
    outcome = json.loads(output)
    for _ in range(50):
        good.turn()
    grown = most_resident - resident_before
    print(
        f"{outcome}\n{turns} turns of the good client meanwhile; resident {resident_before / MEGABYTE:.1f} MB and at "
        f"most {grown / MEGABYTE:.1f} MB more"
    )
    assert broker.running
    assert "Traceback" not in broker.stderr_path.read_text(encoding="utf-8"), f"seed {SEED}: a bug in a handler"
    assert outcome["sent"] == FRAMES
    assert outcome["fewest_per_api"] > FRAMES / 200
    # Some damage leaves a valid request, some does not; a run that sees only one of the two tests nothing.
    assert outcome["outcomes"]["answered"] > FRAMES / 10
    assert outcome["outcomes"]["closed"] > FRAMES / 10
    assert grown < 40 * MEGABYTE, f"seed {SEED}"

    assert read_with_ours(broker.bootstrap, GOOD_TOPIC) == good.written
    # The checksum keeps damaged records out; those whose checksum was made right may be any well-formed ones.
    assert set(read_with_ours(broker.bootstrap, DAMAGED_TOPIC)) <= set(GOOD_VALUES), f"seed {SEED}"
    resealed = read_with_ours(broker.bootstrap, RESEALED_TOPIC)
    assert set(resealed) - set(GOOD_VALUES), "no batch with a damaged inside was well-formed: nothing was tested"
    assert read_with_confluent(broker.bootstrap, RESEALED_TOPIC, len(resealed)) == resealed, f"seed {SEED}"
    # What is in the log is read again at the next start.
    broker.kill()
    broker.start()
    assert read_with_ours(broker.bootstrap, GOOD_TOPIC) == good.written
    assert read_with_ours(broker.bootstrap, RESEALED_TOPIC) == resealed, f"seed {SEED}"
