"""One request, everybody waits? The worst request of every served API, and how long it holds the broker's loop.

In processor time of the loop's thread, so that what else the machine does is not counted. The table with the figures is
printed (``-rP``), by the clock, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS
from spark_kafkalite.client.admin.admin import NewTopic
from tests import processor
from tests.interop.hostile import worst_requests
from tests.interop.hostile.worst_requests import MEBIBYTE, WIDE, Worst
from tests.interop.support.metered_broker import MeteredBroker
from tests.interop.support.raw_client import RawClient

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

# What one turn of the loop may take of the processor, whatever is asked for.
LONGEST_MS = 100
# What a request may take of memory beside its own bytes, while it is worked on. docs/protocol.md names it.
MOST_BYTES = 256 * MEBIBYTE


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    # What is produced here is of long ago; retention would take it in the middle of a test.
    overrides = {"max.decompressed.batch.bytes": str(100 * MEBIBYTE), "log.retention.ms": "-1"}
    with MeteredBroker(tmp_path_factory.mktemp("worst") / "data", overrides=overrides) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topic("wide", WIDE, 1)
            large = {"max.message.bytes": str(100 * MEBIBYTE)}
            admin.create_topic("large", 1, 1, large)
            admin.create_topic("stamped", 1, 1, large | {"message.timestamp.type": "LogAppendTime"})
            names = worst_requests.names("names-", worst_requests.MANY_TOPICS)
            admin.create_topics([NewTopic(name, 1, 1) for name in names])
        with Consumer(bootstrap_servers=running.bootstrap, group_id="g") as consumer:
            consumer.commit({TopicPartition("wide", number): 0 for number in range(WIDE)})
        yield running


def test_every_served_api_has_a_worst_request() -> None:
    handlers.load()
    assert {worst.api_key for worst in worst_requests.ALL} == set(SERVED_APIS)


@pytest.mark.parametrize("worst", worst_requests.ALL, ids=lambda worst: worst.name)
def test_the_loop_is_never_held_for_long(broker: MeteredBroker, worst: Worst) -> None:
    frame = worst.make()
    before = broker.read()
    began_s = time.monotonic()
    with RawClient(broker.bootstrap, 100.0) as client:
        client.send_frame(frame)
        answer_bytes = 0
        if worst.refused:
            assert client.is_closed()
        else:
            answer_bytes = len(client.receive_frame())
    seconds = time.monotonic() - began_s
    readings = broker.read()
    more_bytes = readings.peak_bytes - before.resident_bytes - len(frame) - answer_bytes
    print(
        f"{worst.name}: longest turn {readings.longest_ms:.0f} ms ({readings.longest_wall_ms:.0f} ms by the clock, "
        f"{readings.collector_ms:.0f} ms the collector), "
        f"answered in {seconds:.2f} s, request {len(frame) / 1e6:.1f} MB, answer {answer_bytes / 1e6:.1f} MB, "
        f"memory {more_bytes / MEBIBYTE:.0f} MiB more"
    )
    assert readings.longest_ms < LONGEST_MS * processor.slowness()
    assert more_bytes < MOST_BYTES


def test_the_next_fetches_of_a_large_session_hold_nobody_either(broker: MeteredBroker) -> None:
    """In few bytes they ask for as much as the first one: all that do not exist are told of again."""
    with RawClient(broker.bootstrap, 100.0) as client:
        client.send_frame(worst_requests.session_fetch(worst_requests.positions(range(10_000))))
        opened = client.receive_fetch(11)
        assert opened.session_id
        broker.read()
        for epoch in (1, 2, 3):
            client.send_frame(worst_requests.session_fetch([], opened.session_id, epoch))
            answer = client.receive_fetch(11)
            # Of those that exist some may have news: other tests write to them.
            unknown = sum(1 for _, asked in answer.topics for one in asked if one.error_code)
            assert (answer.error_code, unknown) == (0, 10_000 - WIDE)
    readings = broker.read()
    print(f"longest turn {readings.longest_ms:.0f} ms")
    assert readings.longest_ms < LONGEST_MS * processor.slowness()
