"""Requests that are harmless alone, by the dozen at once: what they add up to in memory.

In the soak also what they add up to in a turn of the loop.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator

import pytest
from _pytest.mark import ParameterSet

from spark_kafkalite import Admin
from spark_kafkalite.broker.requests.gate import AT_ONCE
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.wire.messages import metadata
from spark_kafkalite.wire.packed import FetchPartition
from tests import processor
from tests.interop.hostile import worst_requests
from tests.interop.hostile.worst_requests import MEBIBYTE
from tests.interop.support.metered_broker import MeteredBroker
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.timeout(900)]

# They are much work: the last answer may come after a minute on a slow machine.
ANSWERED_S = 10 * PATIENCE_S
LONGEST_MS = 100
TOPICS, PARTITIONS = 1000, 1000
ALL_TOPICS = worst_requests.frame(metadata.MetadataRequest(topics=None), 9)

# Each below 32 KiB: request, connections, of each how many.
SMALL = {
    "settings of 1,000 topics": (
        lambda: worst_requests.configs_of([(2, name) for name in worst_requests.names("names-", TOPICS)]), 30, 1
    ),
    "metadata of all topics": (lambda: ALL_TOPICS, 50, 1),
    "metadata of all topics, sent ahead": (lambda: ALL_TOPICS, 4, 64),
    "offsets of 1,000 partitions": (lambda: worst_requests.list_offsets_of(list(range(PARTITIONS))), 50, 1),
    "records before 0 of 1,000 partitions": (lambda: worst_requests.records_before(list(range(PARTITIONS))), 50, 1),
    "fetch of 1,000 partitions": (
        lambda: worst_requests.fetch([FetchPartition(number, 0, 9) for number in range(PARTITIONS)]), 50, 1
    ),
    "new topics, validated": (lambda: worst_requests.new_topics(900), 50, 1),
}  # fmt: skip
# Those that make test sends: from many connections, and ahead on few.
SHORT = ("settings of 1,000 topics", "metadata of all topics, sent ahead")
# Of handlers that wait, which go on when their requests have been decoded.
LARGE = {
    "alterations of 100,000 topics": lambda: worst_requests.increments(100_000, 1),
    "records before 0 of 250,000 partitions": lambda: worst_requests.records_before(list(range(250_000))),
    "metadata of many unknown topics": lambda: worst_requests.metadata_of(worst_requests.names("none-")),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    with MeteredBroker(tmp_path_factory.mktemp("crowds") / "data") as running:
        with Admin(bootstrap_servers=running.bootstrap, request_timeout_ms=60_000) as admin:
            admin.create_topic("wide", PARTITIONS, 1)
            admin.create_topics([NewTopic(name, 1, 1) for name in worst_requests.names("names-", TOPICS)])
        yield running


def send_at_once(broker: MeteredBroker, frame: bytes, connections: int, count: int) -> None:
    """Have the broker find all of it there when it looks, and read all answers."""
    clients = [RawClient(broker.bootstrap, ANSWERED_S) for _ in range(connections)]
    try:
        clients[0].send_frame(ALL_TOPICS)
        clients[0].receive_frame()
        broker.read()
        broker.pause()
        try:
            for client in clients:
                for _ in range(count):
                    client.send_frame(frame)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        for client in clients:
            for _ in range(count):
                client.receive_frame()
    finally:
        for client in clients:
            client.close()


def play_small(broker: MeteredBroker, name: str) -> None:
    make, connections, count = SMALL[name]
    frame = make()
    assert len(frame) < 32 * 1024
    send_at_once(broker, frame, connections, count)


def the_rest_in_the_soak(names: Iterable[str], *short: str) -> list[ParameterSet]:
    return [pytest.param(name, marks=() if name in short else pytest.mark.soak) for name in names]


@pytest.mark.parametrize(
    "name",
    the_rest_in_the_soak(SMALL, *SHORT),
)
def test_small_requests_by_the_dozen_do_not_add_up(broker: MeteredBroker, name: str) -> None:
    before = broker.read()
    play_small(broker, name)
    readings = broker.read()
    more_bytes = readings.peak_bytes - before.resident_bytes
    print(f"{name}: longest turn {readings.longest_ms:.0f} ms, memory {more_bytes / MEBIBYTE:.0f} MiB more")
    assert more_bytes < 256 * MEBIBYTE


@pytest.mark.soak
@pytest.mark.parametrize("name", SMALL)
def test_small_requests_by_the_dozen_do_not_hold_the_loop(broker: MeteredBroker, name: str) -> None:
    assert broker.least_longest_ms(lambda: play_small(broker, name)) < LONGEST_MS * processor.slowness()


def play_large(broker: MeteredBroker, frame: bytes, count: int) -> None:
    """Send a request on several connections and wait for all answers."""
    clients = [RawClient(broker.bootstrap, ANSWERED_S) for _ in range(count)]
    try:
        for client in clients:
            client.send_frame(frame)
        for client in clients:
            client.receive_frame()
    finally:
        for client in clients:
            client.close()


# tests/unit/broker/requests/test_dispatch.py has the gate itself.
@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_few_large_requests_are_worked_on_at_a_time_where_handlers_wait(broker: MeteredBroker, name: str) -> None:
    frame = LARGE[name]()
    before = broker.read()
    play_large(broker, frame, 1)
    alone_bytes = broker.read().peak_bytes - before.resident_bytes
    before = broker.read()
    with_all_bytes = 7 * len(frame) + before.resident_bytes
    play_large(broker, frame, 7)
    more_bytes = broker.read().peak_bytes - with_all_bytes
    print(f"{name}: alone {alone_bytes / MEBIBYTE:.0f} MiB, seven {more_bytes / MEBIBYTE:.0f} MiB more")
    # What one has taken may not have been given back to the system.
    assert more_bytes < (AT_ONCE + 1) * max(alone_bytes, 64 * MEBIBYTE)


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_large_requests_do_not_hold_the_loop(broker: MeteredBroker, name: str) -> None:
    frame = LARGE[name]()
    assert broker.least_longest_ms(lambda: play_large(broker, frame, 7)) < LONGEST_MS * processor.slowness()
