"""The worst request of every served API: it is answered, or closes its connection, in bounded memory.

The soak bounds the longest turn of the broker's loop, too, in processor time of the loop's thread: what else the
machine does is not counted. ``-rP`` prints a line with the figures for each request.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.mark.structures import ParameterSet

from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS
from spark_kafkalite.client.admin.admin import NewTopic
from tests import processor
from tests.interop.hostile import worst_requests
from tests.interop.hostile.worst_requests import MEBIBYTE, WIDE, Worst
from tests.interop.support.metered_broker import MeteredBroker, Readings
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.timeout(600)]

# They are much work: an answer may take a minute on a slow machine.
ANSWERED_S = 5 * PATIENCE_S
# What one turn of the loop may take of the processor, whatever is asked for.
LONGEST_MS = 100
# What a request may take of memory beside its own bytes, while it is worked on. docs/protocol.md names it.
MOST_BYTES = 256 * MEBIBYTE // worst_requests.PART


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


ALL_WORST = pytest.mark.parametrize("worst", worst_requests.ALL, ids=lambda worst: worst.name)


def one_of_each_api() -> Iterator[ParameterSet]:
    """The first one of each API, and in the soak the others."""
    seen: set[int] = set()
    for worst in worst_requests.ALL:
        yield pytest.param(worst, id=worst.name, marks=[pytest.mark.soak] if worst.api_key in seen else [])
        seen.add(worst.api_key)


def play(broker: MeteredBroker, frame: bytes, *, refused: bool) -> int:
    """Send a request and wait for what it gets; return the size of its answer in bytes."""
    with RawClient(broker.bootstrap, ANSWERED_S) as client:
        client.send_frame(frame)
        if refused:
            assert client.is_closed()
            return 0
        answer = client.receive_frame()
        assert answer[:4] == frame[4:8]
        return len(answer)


def figures(readings: Readings) -> str:
    return (
        f"longest turn {readings.longest_ms:.0f} ms ({readings.longest_wall_ms:.0f} ms by the clock, "
        f"{readings.collector_ms:.0f} ms the collector)"
    )


@pytest.mark.parametrize("worst", list(one_of_each_api()))
def test_it_takes_bounded_memory(broker: MeteredBroker, worst: Worst) -> None:
    frame = worst.make()
    before = broker.read()
    answer_bytes = play(broker, frame, refused=worst.refused)
    readings = broker.read()
    more_bytes = readings.peak_bytes - before.resident_bytes - len(frame) - answer_bytes
    print(
        f"{worst.name}: {figures(readings)}, request {len(frame) / 1e6:.1f} MB, answer {answer_bytes / 1e6:.1f} MB, "
        f"memory {more_bytes / MEBIBYTE:.0f} MiB more"
    )
    assert more_bytes < MOST_BYTES


@pytest.mark.soak
@ALL_WORST
def test_the_loop_is_never_held_for_long(broker: MeteredBroker, worst: Worst) -> None:
    frame = worst.make()
    longest_ms = broker.least_longest_ms(lambda: play(broker, frame, refused=worst.refused))
    assert longest_ms < LONGEST_MS * processor.slowness()


def play_session(broker: MeteredBroker) -> None:
    """Open a session of partitions that do not exist but for a few, and fetch from it."""
    with RawClient(broker.bootstrap, ANSWERED_S) as client:
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


def test_the_next_fetches_of_a_large_session_report_all_unknown_partitions_again(broker: MeteredBroker) -> None:
    """In few bytes they ask for as much as the first one."""
    before = broker.read()
    play_session(broker)
    assert broker.read().peak_bytes - before.resident_bytes < MOST_BYTES


@pytest.mark.soak
def test_the_next_fetches_of_a_large_session_do_not_hold_the_loop_either(broker: MeteredBroker) -> None:
    assert broker.least_longest_ms(lambda: play_session(broker)) < LONGEST_MS * processor.slowness()
