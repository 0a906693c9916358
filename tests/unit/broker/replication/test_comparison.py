"""A follower compares its log with its leader's: both are real partitions, and the leader's handler answers."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.replication.comparison import Comparison, PartitionComparison
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.compare_rounds import CompareRounds
from spark_kafkalite.broker.requests.handlers.compare_replicas import handle
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import BrokerUnreachable, ClusterAuthorizationFailed, UnknownTopicId
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.small_files import COMPARED_FILE, read_compared_ms, write_compared_ms
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.assemble import empty_batch
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, diff
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.znodes import COMPARES_FROM_INNER_WIRE_VERSION, INNER_WIRE_VERSION
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.codec import decode_request, decode_response_body, encode_body
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.inner.compare_replicas import CompareReplicasRequest, CompareReplicasResponse
from tests.lab.batches import make_stored_batch
from tests.lab.manual_loop import ManualLoop
from tests.lab.partition_states import live_broker, partition_state
from tests.seeds import SEED
from tests.unit.broker.replication.test_partition import TP, Harness

LEADER, ME = 1, 2
MEBIBYTE = 1 << 20
TOPIC_ID = b"i" * 16


class Threads:
    """Work of threads is done at once; some of it is counted."""

    def __init__(self) -> None:
        self.ran = 0

    async def run(self, work: Callable[[], Any], *_: Any) -> Any:
        self.ran += 1
        await asyncio.sleep(0)
        return work()


class Pair:
    """A leader and a follower of one partition, each with its own disk, and what each was told."""

    def __init__(self, batches: int = 40, rate: int = MEBIBYTE, **settings: object) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.io = Threads()
        self.damage: dict[int, list[tuple[int, int]]] = {LEADER: [], ME: []}
        self.differing: list[Partition] = []
        self.asked: list[CompareReplicasRequest] = []
        self.error: Exception | None = None
        dice = random.Random(SEED)
        self.batches = [make_stored_batch(number, 0, [dice.randbytes(100)]) for number in range(batches)]
        self.leader, self.follower = (self._partition(each, **settings) for each in (LEADER, ME))
        self.rounds = CompareRounds(rate, 1)
        self.context: Any = SimpleNamespace(
            cluster=SimpleNamespace(topic_name=lambda topic_id: "t" if topic_id == TOPIC_ID else None),
            replicas=SimpleNamespace(get=lambda _: self.leader),
            io=self.io,
        )

    def _partition(self, broker: int, **settings: object) -> Partition:
        harness = Harness(self.loop)
        services = harness.services
        services.broker_id, services.io = broker, self.io  # type: ignore[assignment]
        services.live_brokers = lambda: {each: live_broker(each) for each in (LEADER, ME)}
        services.is_member = lambda _: True
        services.on_damage_found = lambda _, ranges, __: self.damage[broker].extend(ranges)
        services.on_differing = self.differing.append
        return harness.partition(lead=False, **settings)

    def fill(self, mine: list[Any] | None = None, leaders: list[Any] | None = None) -> None:
        """Have both logs hold these batches, all of them committed, and begin their roles."""
        for partition, batches in ((self.leader, leaders), (self.follower, mine)):
            for batch in self.batches if batches is None else batches:
                copy_at_once(partition.log, memoryview(batch), 0)
        state = partition_state(LEADER, ME, replicas=(LEADER, ME), epoch=0, version=1)
        self.leader.become_leader(state)
        self.follower.resign(LEADER, 0, 1)
        for partition in (self.leader, self.follower):
            partition.bounds.commit(int(partition.log.log_end_offset))

    def session(self, broker_id: int | None = ME) -> Any:
        def check_replica(replica_id: int) -> None:
            if replica_id != broker_id:
                raise ClusterAuthorizationFailed("another one")

        return SimpleNamespace(broker_id=broker_id, check_replica=check_replica)

    async def ask(self, request: CompareReplicasRequest) -> CompareReplicasResponse:
        if self.error is not None:
            raise self.error
        self.asked.append(request)
        # As over the wire.
        came = decode_request(request.API_KEY, 0, encode_body(request, 0), 0)
        assert came == request
        exchange: Any = SimpleNamespace(session=self.session())
        answer = await handle(self.context, exchange, came)
        answer = decode_response_body(request.API_KEY, 0, encode_body(answer, 0))
        if answer.error_code:
            raise error_for(answer.error_code)
        return answer

    def compare(self) -> PartitionComparison:
        role = self.follower.role
        assert isinstance(role, Follower)
        compared = PartitionComparison(self.follower, role, self.follower._services, self.rounds, self.ask)

        async def all_of_it() -> None:
            while not await compared.is_done():
                if not compared.is_current or compared.has_failed:
                    return

        self.loop.run_until_complete(all_of_it())
        return compared


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**options: Any) -> Pair:
        made.append(Pair(**options))
        return made[-1]

    yield make
    for each in made:
        each.loop.close()


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def flip(partition: Partition, offset: int) -> None:
    """Change a byte of a record on the disk."""
    segment = partition.log.segments.floor(offset)
    found = segment.find(offset)
    assert found is not None
    at = found.position + found.header.size_bytes - 5
    (byte,) = segment.file.pread(1, at)
    segment.file.pwrite(bytes([byte ^ 1]), at)


def test_equal_replicas_have_no_line_and_take_the_time_that_is_allowed(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    both = pair(batches=400, rate=10_000, segment_bytes=5000)
    both.fill()
    began_s = both.loop.time()
    both.compare()
    assert not errors_of(caplog) and not both.damage[ME] and not both.damage[LEADER] and not both.differing
    size_bytes = sum(map(len, both.batches))
    assert both.loop.time() - began_s >= size_bytes / 10_000
    assert all(not request.is_detailed for request in both.asked)


def test_sound_batches_that_differ_are_copied_again(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    both = pair()
    both.fill([*both.batches[:17], make_stored_batch(17, 0, [b"y" * 100]), *both.batches[18:]])
    both.compare()
    assert both.differing == [both.follower]
    assert not both.damage[ME] and not both.damage[LEADER]
    (line,) = errors_of(caplog)
    assert "t-0: offsets 0 to 39 of broker 2 differ from those of broker 1, its leader in epoch 0" in line
    assert len(set(re.findall(r"checksum ([0-9a-f]{8})", line))) == 2
    assert "consumers have read broker 1's: broker 2 leaves the ISR" in line


@pytest.mark.parametrize("damaged", [ME, LEADER])
def test_who_fails_its_crc_is_damaged(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture, damaged: int
) -> None:
    both = pair(segment_bytes=1500)
    both.fill()
    flip(both.follower if damaged == ME else both.leader, 23)
    both.compare()
    assert both.damage[damaged] == [(23, 24)]
    assert not both.damage[ME + LEADER - damaged] and not both.differing
    (line,) = errors_of(caplog)
    assert f"offsets 23 to 23 are damaged in broker {damaged}'s log" in line


@pytest.mark.parametrize("damaged", [ME, LEADER])
def test_who_has_a_filler_where_the_other_has_records_is_damaged(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture, damaged: int
) -> None:
    both = pair()
    holed = [*both.batches[:10], empty_batch(10, 14, 0), *both.batches[15:]]
    both.fill(**{"mine" if damaged == ME else "leaders": holed})
    both.compare()
    assert both.damage[damaged] == [(10, 15)]
    assert not both.damage[ME + LEADER - damaged] and not both.differing
    assert len(errors_of(caplog)) == 1


def test_a_filler_that_both_have_is_no_difference(pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture) -> None:
    both = pair()
    holed = [*both.batches[:10], empty_batch(10, 14, 0), *both.batches[15:]]
    both.fill(holed, holed)
    both.compare()
    assert not errors_of(caplog) and not both.damage[ME] and not both.damage[LEADER]


def test_what_only_one_side_has_cleaned_or_removed_is_left_out(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    both = pair()
    thinned = [*both.batches[:10], *both.batches[20:]]
    both.fill(leaders=thinned)
    both.leader.log.cleaned_until_offset = 20
    both.compare()
    assert not errors_of(caplog) and not both.differing
    assert {request.start_offset for request in both.asked} == {0, 20}


def test_what_is_not_committed_is_left_out(pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture) -> None:
    both = pair()
    both.fill([*both.batches[:30], make_stored_batch(30, 0, [b"y" * 100])], both.batches[:31])
    both.follower.bounds.truncated(30)
    both.compare()
    assert not errors_of(caplog) and not both.differing


def test_under_another_leader_epoch_nothing_counts(pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture) -> None:
    both = pair()
    both.fill([make_stored_batch(0, 0, [b"y" * 100]), *both.batches[1:]])
    ask = both.ask

    async def ask_and_change(request: CompareReplicasRequest) -> CompareReplicasResponse:
        answer = await ask(request)
        both.follower.resign(3, 1, 2)
        return answer

    both.ask = ask_and_change  # type: ignore[method-assign]
    compared = both.compare()
    assert not compared.is_current
    assert not errors_of(caplog) and not both.differing


def test_a_leader_that_does_not_answer_ends_it_for_now(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    both = pair()
    both.fill()
    both.error = BrokerUnreachable("it is away")
    compared = both.compare()
    assert compared.has_failed and compared.is_current
    assert not errors_of(caplog)


def test_only_proved_brokers_are_answered(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.fill()

    def answer(broker_id: int | None, **fields: Any) -> int:
        fields = {"replica_id": ME, "topic_id": TOPIC_ID, "leader_epoch": 0, "end_offset": 40, **fields}
        exchange: Any = SimpleNamespace(session=both.session(broker_id))
        request = CompareReplicasRequest(max_bytes=MEBIBYTE, **fields)
        return both.loop.run_until_complete(handle(both.context, exchange, request)).error_code

    assert answer(ME) == 0
    assert answer(None) == answer(3) == ClusterAuthorizationFailed.code
    assert answer(ME, topic_id=b"o" * 16) == UnknownTopicId.code
    assert answer(ME, leader_epoch=5) == 75
    # What lies beyond is not read.
    assert answer(ME, start_offset=40) == 0


HOUR_MS = 3_600_000
NOTE = f"/logs/{COMPARED_FILE}"


def comparison_of(
    both: Pair, *, was_clean: bool = True, inner_wire_version: int = INNER_WIRE_VERSION, rate: int = MEBIBYTE
) -> Comparison:
    """Return what has the follower compared each hour, the last time half an hour ago."""
    fs = both.follower.log.host.files.fs
    config = BrokerConfig.from_properties(
        {
            "broker.id": ME,
            "replica.compare.interval.ms": HOUR_MS,
            "replica.compare.max.bytes.per.second": rate,
            "log.initial.task.delay.ms": 1000,
        }
    )
    directories = SimpleNamespace(online=[SimpleNamespace(path="/logs")])
    logs: Any = SimpleNamespace(fs=fs, was_clean=was_clean, directories=directories)

    class Peers:
        async def ask(self, broker: Any, request: Any, version: int, *, timeout_s: float) -> Any:
            return await both.ask(request)

    class Hosted:
        def __iter__(self) -> Iterator[Partition]:
            return iter([both.follower])

        def find(self, key: TopicPartition) -> Partition | None:
            return both.follower if key == TP else None

    leader = replace(live_broker(LEADER), inner_wire_version=inner_wire_version)
    view = ClusterView()
    view.publish(ClusterState(brokers={LEADER: leader}), diff(view.state, ClusterState(brokers={LEADER: leader})))
    write_compared_ms(fs, NOTE, both.clock.wall_ms() - HOUR_MS // 2)
    return Comparison(
        both.loop,
        config,
        both.io,  # type: ignore[arg-type]
        both.clock,
        logs,
        Hosted(),  # type: ignore[arg-type]
        both.follower._services,
        view,
        Peers(),  # type: ignore[arg-type]
    )


def test_rounds_come_an_interval_apart_and_cost_nothing_in_between(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.fill()
    comparison, fs = comparison_of(both), both.follower.log.host.files.fs
    comparison.start()
    both.loop.run_for(HOUR_MS / 2000 - 60)
    assert not both.asked and both.io.ran == 1
    both.loop.run_for(120)
    assert both.asked and read_compared_ms(fs, NOTE) > both.clock.wall_ms() - 120_000
    asked, ran = len(both.asked), both.io.ran
    both.loop.run_for(HOUR_MS / 1000 - 300)
    assert (len(both.asked), both.io.ran) == (asked, ran)
    both.loop.run_for(400)
    assert len(both.asked) == 2 * asked
    both.loop.run_until_complete(comparison.stop())


def test_after_a_stop_that_was_not_in_order_a_round_begins_at_once(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.fill()
    comparison = comparison_of(both, was_clean=False)
    comparison.start()
    both.loop.run_for(10)
    asked = len(both.asked)
    assert asked
    # The next one comes when its time has come.
    both.loop.run_for(HOUR_MS / 2000)
    assert len(both.asked) == asked
    both.loop.run_until_complete(comparison.stop())


def test_a_round_that_has_not_ended_begins_anew_with_the_next_run(pair: Callable[..., Pair]) -> None:
    both = pair(rate=1)
    both.fill()
    comparison = comparison_of(both, was_clean=False)
    both.error = BrokerUnreachable("it is away")
    comparison.start()
    both.loop.run_for(2)
    both.loop.run_until_complete(comparison.stop())
    assert read_compared_ms(both.follower.log.host.files.fs, NOTE) == 0


def test_who_is_not_in_sync_is_compared_when_it_is(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.fill()
    members: list[TopicPartition] = []
    both.follower._services.is_member = lambda key: key in members
    comparison = comparison_of(both, was_clean=False)
    comparison.start()
    both.loop.run_for(30)
    assert not both.asked
    members.append(TP)
    both.loop.run_for(100)
    assert both.asked
    both.loop.run_until_complete(comparison.stop())


def test_a_leader_that_does_not_know_the_request_is_not_asked(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.fill()
    comparison = comparison_of(both, was_clean=False, inner_wire_version=COMPARES_FROM_INNER_WIRE_VERSION - 1)
    comparison.start()
    both.loop.run_for(100)
    assert not both.asked
    both.loop.run_until_complete(comparison.stop())


def test_what_is_asked_for_is_compared_at_once_and_says_how_it_ended(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.fill()
    comparison = comparison_of(both)
    comparison.start()
    both.loop.run_for(5)
    assert comparison.asked(TP) is None and not both.asked
    comparison.compare_now([TP, TopicPartition("unknown", 0)])
    assert comparison.asked(TP) == ("waiting", "others come first")
    both.loop.run_for(5)
    assert comparison.asked(TP) == ("same", "offsets 0 to 39")
    assert comparison.asked(TopicPartition("unknown", 0)) is None
    flip(both.leader, 23)
    comparison.compare_now([TP])
    both.loop.run_for(5)
    assert comparison.asked(TP) == ("different", "offsets 23 to 23 are damaged in broker 1's log")
    assert both.damage[LEADER] == [(23, 24)]
    both.loop.run_until_complete(comparison.stop())


def _fall_out_of_sync(both: Pair) -> None:
    both.follower._services.is_member = lambda key: False


def _answer_nothing(both: Pair) -> None:
    both.error = BrokerUnreachable("broker 1 does not answer")


def _change_the_leader(both: Pair) -> None:
    both.follower.resign(LEADER, 7, 9)


def _have_no_leader(both: Pair) -> None:
    both.follower.resign(-1, 7, 9)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (_fall_out_of_sync, "it is not in sync. Compare it again when kafkalite cluster status shows it in sync"),
        (_answer_nothing, "5 errors in a row, the last one: broker 1 does not answer. Read the logs of this broker"),
        (_change_the_leader, "its leader, or the leader epoch, has changed during the comparison. Compare it again"),
        (_have_no_leader, "its leader, or the leader epoch, has changed during the comparison. Compare it again"),
    ],
)
def test_a_comparison_that_did_not_end_says_why_and_what_to_do(
    pair: Callable[..., Pair], fault: Callable[[Pair], None], why: str
) -> None:
    both = pair()
    both.fill()
    comparison = comparison_of(both, rate=1000)
    comparison.start()
    comparison.compare_now([TP])
    both.loop.run_for(0.1)
    assert (comparison.asked(TP) or ("",))[0] == "comparing"
    fault(both)
    both.loop.run_for(3600)
    state, text = comparison.asked(TP) or ("", "")
    assert state == "failed" and text.startswith(why), text
    if fault is _have_no_leader:
        comparison.compare_now([TP])
        both.loop.run_for(1)
        state, text = comparison.asked(TP) or ("", "")
        assert state == "failed" and text.startswith("it has no live leader: kafkalite cluster status shows why"), text
    both.loop.run_until_complete(comparison.stop())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"inner_wire_version": COMPARES_FROM_INNER_WIRE_VERSION - 1},
            "this broker does not follow it, or its leader is of an older",
        ),
        ({"rate": 0}, "replica.compare.max.bytes.per.second is 0"),
    ],
)
def test_what_is_never_compared_is_not_compared_on_request(
    pair: Callable[..., Pair], settings: dict[str, int], why: str
) -> None:
    both = pair()
    both.fill()
    comparison = comparison_of(both, **settings)
    comparison.compare_now([TP])
    both.loop.run_for(5)
    state, text = comparison.asked(TP) or ("", "")
    assert (state, text[: len(why)], both.asked) == ("failed", why, [])
    both.loop.run_until_complete(comparison.stop())


def test_what_is_asked_for_takes_turns_with_a_round(pair: Callable[..., Pair]) -> None:
    both = pair(batches=400, segment_bytes=5000)
    both.fill()
    comparison = comparison_of(both, was_clean=False, rate=10_000)
    comparison.start()
    both.loop.run_for(2)
    comparison.compare_now([TP])
    both.loop.run_for(1)
    state, progress = comparison.asked(TP) or ("", "")
    assert state == "comparing" and progress.endswith(" of 400")
    # One that is under way is not begun again.
    comparison.compare_now([TP])
    before = len(both.asked)
    both.loop.run_for(60)
    # A request counts as 64 KiB at least: together they have made as many as is allowed in that time.
    assert len(both.asked) - before <= 60 * 10_000 / 65_536 + 1
    starts = [request.start_offset for request in both.asked[before:]]
    assert len(set(starts)) < len(starts), "both have gone on"
    both.loop.run_until_complete(comparison.stop())
