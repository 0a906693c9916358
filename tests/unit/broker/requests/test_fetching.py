"""The handlers of Fetch, ListOffsets and Produce over real partitions: sessions, followers, and what is refused how."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.replication.bounds import Bounds
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests import fetch_sessions, handlers
from spark_kafkalite.broker.requests.dispatch import Dispatcher, QuotaSource
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.fetch_sessions import EVICTION_S, FetchSessions
from spark_kafkalite.broker.requests.gate import Gate
from spark_kafkalite.broker.requests.handlers import list_offsets, offset_for_leader_epoch, produce
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.errors import FetchSessionIdNotFound, KafkaStorageError, UnknownTopicOrPartition
from spark_kafkalite.log.segments.segment import LogSlice
from spark_kafkalite.log.truncation import truncate_to
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.net.outbox import FileRange
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState, TopicState
from spark_kafkalite.slices import Slices, run_whole
from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.lab.batches import values_of
from tests.lab.partition_states import live_broker, partition_state
from tests.unit.broker.replication.test_partition import Harness
from tests.unit.broker.requests.test_dispatch import QuotaOfAll
from tests.unit.slice_clock import SliceClock

TOPIC, TOPIC_ID = "t", b"i" * 16
ME, FOLLOWER, INCARNATION = 1, 2, 20
WAIT_MS = 60_000


class Connection:
    """What an exchange goes over; answers are kept."""

    def __init__(self, bed: Bed, broker_id: int | None = None) -> None:
        self._bed = bed
        self.session = Session("127.0.0.1:5", bed.listener)
        self.session.broker_id = broker_id
        self.received_s = 0.0
        self.held = 0
        self.muted_s: list[float] = []
        self.answers: list[Any] = []
        self.closed = ""

    def now_s(self) -> float:
        return self.received_s

    def answered(self, exchange: Exchange) -> None:
        assert exchange.response is not None
        self.answers.append(exchange.response)

    def send_answers(self) -> None:
        pass

    def take_place(self, exchange: Exchange) -> None:
        exchange.has_place = True

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1

    def mute(self, seconds: float) -> None:
        self.muted_s.append(seconds)

    def keep(self, frame: memoryview) -> tuple[memoryview, Any]:
        return frame, lambda: None

    def close(self, reason: str, *, hostile: bool = False) -> None:
        self.closed = reason
        self.session.connection_closed()

    # Fetching -------------------------------------------------------------------------------------------------------

    def send(self, request: packed.FetchRequest, version: int = 17) -> None:
        frame = memoryview(packed.pack_fetch_request(1, "c", version, request))
        self._bed.dispatcher.serve(self, frame)  # type: ignore[arg-type]

    def receive(self, version: int = 17) -> packed.FetchResponse:
        """Take the one answer that there is."""
        (answer,) = self.receive_all(version)
        return answer

    def receive_all(self, version: int = 17) -> list[packed.FetchResponse]:
        """Take the answers that there are."""
        self._bed.harness.run_loop()
        answers, self.answers = self.answers, []
        whole = [
            b"".join(
                piece.file.pread(piece.length, piece.position) if isinstance(piece, FileRange) else piece
                for piece in pieces
            )
            for pieces, _ in answers
        ]
        return [packed.parse_fetch_response(each, version) for each in whole]

    def fetch(self, request: packed.FetchRequest, version: int = 17) -> packed.FetchResponse:
        self.send(request, version)
        return self.receive(version)


class Bed:
    """Partitions of one topic and what handlers need around them."""

    def __init__(self, harness: Harness, quotas: QuotaSource | None = None) -> None:
        self.harness = harness
        harness.services.live_brokers = lambda: {each: live_broker(each) for each in (1, 2, 3)}
        self.partitions: dict[TopicPartition, Partition] = {}
        self.listener: Any = SimpleNamespace(name="OUTSIDE", advertised_host="me", advertised_port=1)
        self.cluster = ClusterState()
        self.config = {"broker.id": ME, "fetch.max.bytes": 1 << 20, "max.incremental.fetch.session.cache.slots": 2}
        self.context: Any = SimpleNamespace(
            meters=None,
            loop=harness.loop,
            purgatory=Purgatory(harness.loop),
            slices=Slices(harness.loop, SliceClock()),
            io=harness.io,
            replicas=SimpleNamespace(get=self._get),
            config=self.config,
            fetch_sessions=FetchSessions(),
            clock=harness.clock,
            gate=Gate(SliceClock()),
            lease=RegistryLease(unlimited=True),
            address_of=lambda broker, session: (broker.host + "-" + session.listener.name, broker.port),
        )
        handlers.load()
        self.dispatcher = Dispatcher(self.context, quotas=quotas)
        self.set_leader(ME, 4)

    def _get(self, topic_partition: TopicPartition) -> Partition:
        if topic_partition not in self.partitions:
            raise UnknownTopicOrPartition(str(topic_partition))
        return self.partitions[topic_partition]

    def set_leader(self, leader: int, epoch: int) -> None:
        """Have the registry say so."""
        state = PartitionState((1, 2, 3), leader, epoch)  # type: ignore[arg-type]
        topics = {TOPIC: TopicState(TOPIC_ID, {0: state}, {})}
        brokers = {3: BrokerInfo(3, "three", 93, "rack", 1)}  # type: ignore[arg-type]
        self.cluster = self.context.cluster = ClusterState(brokers=brokers, topics=topics)

    def lead(self, number: int = 0, *, isr: tuple[int, ...] = (ME,), **settings: object) -> Partition:
        """Lead a partition in epoch 4."""
        partition = self.harness.partition(number, lead=False, **settings)
        partition.become_leader(partition_state(*isr, epoch=4, version=1))
        self.partitions[TopicPartition(TOPIC, number)] = partition
        return partition


@pytest.fixture
def harness() -> Iterator[Harness]:
    loop = asyncio.new_event_loop()
    yield Harness(loop)
    loop.close()


@pytest.fixture
def bed(harness: Harness) -> Bed:
    return Bed(harness)


def opening(offset: int = 0, *, max_wait_ms: int = 0, epoch: int = -1, **options: Any) -> packed.FetchRequest:
    """A request that opens a session for partition 0."""
    asked = packed.FetchPartition(0, offset, 1 << 20, epoch, options.pop("last_fetched_epoch", -1))
    return packed.FetchRequest([(TOPIC_ID, [asked])], max_wait_ms, session_epoch=0, **options)


def follower(request: packed.FetchRequest) -> packed.FetchRequest:
    return request._replace(replica_id=FOLLOWER, replica_epoch=INCARNATION)


def going_on(request: packed.FetchRequest, answer: packed.FetchResponse, epoch: int, **options: Any) -> Any:
    """The next request of a session, which names nothing unless ``topics`` are given."""
    return request._replace(**{"topics": (), "session_id": answer.session_id, "session_epoch": epoch, **options})


class Acknowledged:
    """What leaders are told of their followers, beside what they make of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int, int]] = []
        self.sessions: list[Any] = []
        self.epochs: list[int] = []
        told, heard = self, Leader.follower_fetched

        def follower_fetched(
            leader: Leader,
            replica_id: int,
            incarnation: Any,
            fetch_offset: int,
            session: Any = None,
            log_start_offset: int = -1,
            damage_stage: int = 0,
        ) -> None:
            heard(leader, replica_id, incarnation, fetch_offset, session, log_start_offset, damage_stage)
            told.calls.append((replica_id, incarnation, fetch_offset))
            told.epochs.append(leader.epoch)
            told.sessions.append(session)

        monkeypatch.setattr(Leader, "follower_fetched", follower_fetched)


@pytest.fixture
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> Acknowledged:
    return Acknowledged(monkeypatch)


class TestFollowers:
    def test_a_leader_is_told_once_for_each_offset(self, bed: Bed, acknowledged: Acknowledged) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4))
        answer = connection.fetch(first)
        assert acknowledged.calls == [(FOLLOWER, INCARNATION, 0)]
        ((_, (one,)),) = answer.topics
        # Followers get what is not committed, and the high watermark itself.
        assert (one.high_watermark, len(values_of(one.records))) == (0, 3)
        connection.received_s = 5.0
        following = [(TOPIC_ID, [packed.FetchPartition(0, 3, 1 << 20, 4, 4)])]
        answer = connection.fetch(going_on(first, answer, 1, topics=following))
        assert acknowledged.calls[1:] == [(FOLLOWER, INCARNATION, 3)]
        # It has moved by this very fetch.
        assert [one.high_watermark for _, ones in answer.topics for one in ones] == [3]
        session = acknowledged.sessions[0]
        assert session is acknowledged.sessions[1] and session.last_fetch_s == 5.0
        # A request without news is a fetch at the same offset, of which the session's time tells the leader.
        for epoch, now_s in ((2, 6.0), (3, 7.0)):
            connection.received_s = now_s
            assert connection.fetch(going_on(first, answer, epoch)).topics == []
            assert session.last_fetch_s == now_s
        assert len(acknowledged.calls) == 2

    def test_a_follower_that_has_left_the_isr_names_everything_again(
        self, bed: Bed, acknowledged: Acknowledged
    ) -> None:
        """It has come to the end before its leader heard of that: its session would not say so again."""
        leader = bed.lead(isr=(ME, FOLLOWER)).check_leader()
        connection, first = Connection(bed, FOLLOWER), follower(opening(epoch=4))
        answer = connection.fetch(first)
        leader.take_state(partition_state(ME, epoch=4, version=2))
        assert connection.fetch(going_on(first, answer, 1)).error_code == FetchSessionIdNotFound.code
        assert connection.fetch(first).session_id not in (0, answer.session_id)
        assert acknowledged.calls == [(FOLLOWER, INCARNATION, 0)] * 2

    @pytest.mark.parametrize(
        "named",
        [
            pytest.param(packed.FetchPartition(0, 2, 1 << 20, 4, 3), id="has parted"),
            pytest.param(packed.FetchPartition(0, 3, 1 << 20, 3, 3), id="another epoch"),
            pytest.param(packed.FetchPartition(0, 9, 1 << 20, 4, 4), id="beyond the end"),
        ],
    )
    def test_what_is_wrong_with_a_partition_is_said_by_the_answer_to_what_names_it(
        self, bed: Bed, named: packed.FetchPartition
    ) -> None:
        """A follower takes an answer that does not speak of it for "the logs fit", and the next request is here."""
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4, max_wait_ms=WAIT_MS))
        answer = connection.fetch(first)
        connection.send(going_on(first, answer, 1, topics=[(TOPIC_ID, [named])]))
        connection.send(going_on(first, answer, 2))
        answers = connection.receive_all()
        ((_, (one,)),) = answers[0].topics
        assert one.diverging_epoch is not None or one.error_code

    @pytest.mark.parametrize("offset", [1, 2])
    def test_a_follower_that_ends_where_its_leader_lacks_offsets_is_heard(
        self, bed: Bed, acknowledged: Acknowledged, offset: int
    ) -> None:
        """Its end shows which of them it lacks, too; what no replica has is accepted only when all are heard."""
        partition = bed.lead(isr=(ME,))
        bed.harness.append(partition, 4)
        partition.log.local.known_damage.add(1, 3)
        connection = Connection(bed, FOLLOWER)
        ((_, (one,)),) = connection.fetch(follower(opening(offset, epoch=4, last_fetched_epoch=4))).topics
        assert one.error_code == KafkaStorageError.code
        assert acknowledged.calls == [(FOLLOWER, INCARNATION, offset)]

    def test_a_leader_of_another_epoch_is_told_too(self, bed: Bed, acknowledged: Acknowledged) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4))
        answer = connection.fetch(first)
        partition.become_leader(partition_state(ME, FOLLOWER, epoch=5, version=2))
        now = [(TOPIC_ID, [packed.FetchPartition(0, 0, 1 << 20, 5)])]
        connection.fetch(going_on(first, answer, 1, topics=now))
        assert acknowledged.epochs == [4, 5]

    def test_what_was_asked_for_under_no_epoch_is_nothing_to_the_next_leader(
        self, bed: Bed, acknowledged: Acknowledged
    ) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        connection = Connection(bed, FOLLOWER)
        first = follower(opening())
        answer = connection.fetch(first)
        partition.become_leader(partition_state(ME, FOLLOWER, epoch=5, version=2))
        connection.fetch(going_on(first, answer, 1))
        assert acknowledged.epochs == [4]

    def test_one_of_an_epoch_that_is_over_acknowledges_nothing(self, bed: Bed, acknowledged: Acknowledged) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4, max_wait_ms=WAIT_MS))
        connection.send(first)
        partition.become_leader(partition_state(ME, FOLLOWER, epoch=5, version=2))
        ((_, (one,)),) = connection.receive().topics
        assert (one.error_code, one.current_leader, acknowledged.epochs) == (74, (ME, 4), [4])

    def test_a_log_that_has_parted_acknowledges_nothing(self, bed: Bed, acknowledged: Acknowledged) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        partition.become_leader(partition_state(ME, FOLLOWER, epoch=6, version=2))
        bed.harness.append(partition, 2)
        connection = Connection(bed, FOLLOWER)
        # It has records of epoch 4 up to 5, which ended at 3.
        first = follower(opening(5, epoch=6, last_fetched_epoch=4, max_wait_ms=WAIT_MS))
        answer = connection.fetch(first)
        ((_, (one,)),) = answer.topics
        assert (one.error_code, one.diverging_epoch, bytes(one.records or b"")) == (0, (4, 3), b"")
        assert acknowledged.calls == []
        # It is told again until it asks for something else; an offset beyond the log says nothing either.
        answer = connection.fetch(going_on(first, answer, 1))
        assert answer.topics[0][1][0].diverging_epoch == (4, 3)
        beyond = [(TOPIC_ID, [packed.FetchPartition(0, 9, 1 << 20, 6, 6)])]
        answer = connection.fetch(going_on(first, answer, 2, topics=beyond))
        assert answer.topics[0][1][0].diverging_epoch == (6, 5)
        no_epoch = [(TOPIC_ID, [packed.FetchPartition(0, 9, 1 << 20, 6)])]
        answer = connection.fetch(going_on(first, answer, 3, topics=no_epoch))
        ((_, (one,)),) = answer.topics
        assert (one.error_code, acknowledged.calls) == (1, [])
        # With where its log starts and ends, since a follower may begin anew there.
        assert (one.log_start_offset, one.last_stable_offset) == (0, 5)

    def test_divergence_is_looked_for_again_when_a_waiting_fetch_wakes(
        self, bed: Bed, acknowledged: Acknowledged
    ) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        for _ in range(3):
            bed.harness.append(partition)
        connection = Connection(bed, FOLLOWER)
        connection.send(follower(opening(3, last_fetched_epoch=4, max_wait_ms=WAIT_MS)))
        bed.harness.run_loop()
        assert connection.answers == []
        # The broker stops leading and comes back with a log that has been cut meanwhile.
        partition.resign(3, 5, 2)
        truncate_to(partition.log, 1)
        partition.become_leader(partition_state(ME, FOLLOWER, epoch=6, version=3))
        ((_, (one,)),) = connection.receive().topics
        assert (one.error_code, one.diverging_epoch) == (0, (4, 1))

    def test_a_leader_is_told_before_it_reads_what_comes_in_the_same_pass(
        self, bed: Bed, acknowledged: Acknowledged
    ) -> None:
        """Producers wait for the one, and nobody for the other."""
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4))
        answer = connection.fetch(first)
        bed.harness.append(partition, 2)
        following = [(TOPIC_ID, [packed.FetchPartition(0, 3, 1 << 20, 4, 4)])]
        connection.send(going_on(first, answer, 1, topics=following, max_wait_ms=WAIT_MS))
        assert (acknowledged.calls[1:], partition.high_watermark) == ([(FOLLOWER, INCARNATION, 3)], 3)
        assert connection.answers == []
        bed.harness.append(partition, 2)
        ((_, (one,)),) = connection.receive().topics
        assert (len(values_of(one.records)), one.high_watermark) == (4, 3)
        assert len(acknowledged.calls) == 2

    def test_a_follower_that_has_all_waits_without_a_reading(
        self, bed: Bed, acknowledged: Acknowledged, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4, max_wait_ms=WAIT_MS))
        connection.send(first)
        bed.harness.append(partition, 3)
        answer = connection.receive()
        read_from: list[int] = []
        read = Leader.read

        def noted(leader: Leader, start_offset: int, max_bytes: int, **options: Any) -> LogSlice | None:
            read_from.append(start_offset)
            return read(leader, start_offset, max_bytes, **options)

        monkeypatch.setattr(Leader, "read", noted)
        has_all = [(TOPIC_ID, [packed.FetchPartition(0, 3, 1 << 20, 4, 4, 0)])]
        connection.send(going_on(first, answer, 1, topics=has_all))
        assert connection.receive_all() == []
        assert (read_from, partition.high_watermark) == ([], 3)
        bed.harness.append(partition, 2)
        ((_, (one,)),) = connection.receive().topics
        assert (len(values_of(one.records)), read_from) == (2, [3])

    def test_a_follower_that_wants_no_bytes_does_not_wait(self, bed: Bed, acknowledged: Acknowledged) -> None:
        """replica.fetch.min.bytes=0."""
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4, max_wait_ms=WAIT_MS))._replace(min_bytes=0)
        answer = connection.fetch(first)
        has_all = [(TOPIC_ID, [packed.FetchPartition(0, 3, 1 << 20, 4, 4, 0)])]
        ((_, (one,)),) = connection.fetch(going_on(first, answer, 1, topics=has_all)).topics
        assert one.high_watermark == 3

    @pytest.mark.parametrize("what", ["more records", "another log start"])
    def test_a_follower_that_goes_on_is_answered_with_what_came_before_it(
        self, bed: Bed, acknowledged: Acknowledged, what: str
    ) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4, max_wait_ms=WAIT_MS))
        answer = connection.fetch(first)
        partition.check_leader().follower_fetched(FOLLOWER, Incarnation(INCARNATION), 3)
        if what == "more records":
            bed.harness.append(partition, 2)
        else:
            partition.log.advance_log_start(2)
        following = [(TOPIC_ID, [packed.FetchPartition(0, 3, 1 << 20, 4, 4, 0)])]
        ((_, (one,)),) = connection.fetch(going_on(first, answer, 1, topics=following)).topics
        found = (len(values_of(one.records)) if one.records else 0, one.log_start_offset)
        assert found == ((2, 0) if what == "more records" else (0, 2))

    def test_a_leader_is_told_nothing_by_a_log_that_has_parted_or_begins_elsewhere(
        self, bed: Bed, acknowledged: Acknowledged
    ) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 9)
        partition.become_leader(partition_state(ME, FOLLOWER, epoch=6, version=2))
        bed.harness.append(partition, 2)
        partition.log.advance_log_start(4)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(11, epoch=6, last_fetched_epoch=6))
        answer = connection.fetch(first)
        assert acknowledged.calls == [(FOLLOWER, INCARNATION, 11)]
        for number, (offset, epoch, last_epoch, told) in enumerate(
            ((10, 6, 4, (0, (4, 9))), (3, 6, -1, (1, None)), (12, 6, -1, (1, None)), (11, 5, 6, (74, None)))
        ):
            asked = [(TOPIC_ID, [packed.FetchPartition(0, offset, 1 << 20, epoch, last_epoch)])]
            answer = connection.fetch(going_on(first, answer, number + 1, topics=asked, max_wait_ms=WAIT_MS))
            ((_, (one,)),) = answer.topics
            assert (one.error_code, one.diverging_epoch) == told
            assert len(acknowledged.calls) == 1

    def test_a_partition_that_is_named_twice_or_forgotten_besides(self, bed: Bed, acknowledged: Acknowledged) -> None:
        """The last mention counts, as in a request without a session."""
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(epoch=4))
        answer = connection.fetch(first)
        twice = [(TOPIC_ID, [packed.FetchPartition(0, offset, 1 << 20, 4, 4) for offset in (3, 1)])]
        answer = connection.fetch(going_on(first, answer, 1, topics=twice, max_wait_ms=WAIT_MS))
        assert (acknowledged.calls[1:], len(answer.topics[0][1])) == ([(FOLLOWER, INCARNATION, 1)], 1)
        both = [(TOPIC_ID, [packed.FetchPartition(0, 2, 1 << 20, 4, 4)])]
        connection.send(going_on(first, answer, 2, topics=both, forgotten_topics=[(TOPIC_ID, [0])]))
        assert (connection.receive().topics, len(acknowledged.calls), connection.closed) == ([], 2, "")

    def test_a_replica_that_the_leader_does_not_have_gets_its_error(self, bed: Bed, acknowledged: Acknowledged) -> None:
        bed.harness.append(bed.lead())
        connection = Connection(bed, 7)
        ((_, (one,)),) = connection.fetch(follower(opening())._replace(replica_id=7)).topics
        assert (one.error_code, one.records) == (6, b"")

    def test_a_high_watermark_that_moves_is_told_of_but_not_waited_for(
        self, bed: Bed, acknowledged: Acknowledged
    ) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER, 3))
        bed.harness.append(partition, 2)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(2))
        answer = connection.fetch(first)
        assert answer.topics[0][1][0].high_watermark == 0
        connection.send(going_on(first, answer, 1, max_wait_ms=WAIT_MS))
        partition.check_leader().follower_fetched(3, Incarnation(30), 2)
        bed.harness.run_loop()
        assert (connection.answers, partition.high_watermark) == ([], 2)
        # The next request ends the wait, and gets it.
        connection.send(going_on(first, answer, 2))
        assert [len(response[0]) for response in connection.answers] == [1, 1]
        ended, told = (packed.parse_fetch_response(b"".join(pieces), 17) for pieces, _ in connection.answers)
        assert ended.topics == []
        assert [one.high_watermark for _, ones in told.topics for one in ones] == [2]

    def test_a_follower_that_ends_before_the_log_start_is_told_where_that_is(
        self, bed: Bed, acknowledged: Acknowledged
    ) -> None:
        partition = bed.lead()
        bed.harness.append(partition, 9)
        partition.log.advance_log_start(6)
        for offset, last_epoch in ((0, -1), (4, 4)):
            asked = [(TOPIC_ID, [packed.FetchPartition(0, offset, 1 << 20, 4, last_epoch)])]
            answer = Connection(bed, FOLLOWER).fetch(follower(opening(epoch=4)._replace(topics=asked)))
            ((_, (one,)),) = answer.topics
            assert (one.error_code, one.log_start_offset) == (1, 6)
            answer = Connection(bed, FOLLOWER).fetch(opening(epoch=4)._replace(topics=asked))
            ((_, (one,)),) = answer.topics
            assert (one.error_code, one.log_start_offset) == (1, -1)

    def test_followers_hear_at_once_of_a_log_start(self, bed: Bed, acknowledged: Acknowledged) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(3))
        answer = connection.fetch(first)
        connection.send(going_on(first, answer, 1, max_wait_ms=WAIT_MS))
        bed.harness.run_loop()
        assert connection.answers == []
        partition.log.advance_log_start(2)
        ((_, (one,)),) = connection.receive().topics
        assert (one.log_start_offset, one.records) == (2, b"")

    def test_any_request_ends_the_wait_of_the_fetch_before_it(self, bed: Bed, acknowledged: Acknowledged) -> None:
        bed.harness.append(bed.lead(isr=(ME, FOLLOWER)), 3)
        connection = Connection(bed, FOLLOWER)
        first = follower(opening(3))
        answer = connection.fetch(first)
        connection.send(going_on(first, answer, 1, max_wait_ms=WAIT_MS))
        bed.harness.run_loop()
        assert connection.answers == []
        asked = OffsetForLeaderTopic(topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=4)])
        request = OffsetForLeaderEpochRequest(replica_id=FOLLOWER, topics=[asked])
        bed.dispatcher.serve(connection, memoryview(codec.encode_request(request, 4, 1, "c")))  # type: ignore[arg-type]
        bed.harness.run_loop()
        (pieces, _), ended = connection.answers
        assert packed.parse_fetch_response(b"".join(pieces), 17).topics == []
        _, message = codec.decode_response(23, 4, ended)
        assert message.topics[0].partitions[0].end_offset == 3

    def test_only_a_connection_that_has_proven_it_is_a_replica(self, bed: Bed, acknowledged: Acknowledged) -> None:
        bed.lead(isr=(ME, FOLLOWER))
        for broker_id in (None, 3):
            connection = Connection(bed, broker_id)
            for version in (12, 15, 17):
                request = follower(opening())
                if version < packed.FETCH_BY_ID:
                    request = request._replace(topics=[(TOPIC, request.topics[0][1])])
                assert connection.fetch(request, version).error_code == 31
            listed = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
            assert self.listed(bed, connection, ListOffsetsRequest(replica_id=FOLLOWER, topics=[listed])) == (31, -1)
            ended = OffsetForLeaderTopic(
                topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=4)]
            )
            exchange = Exchange(connection, (23, 4, 1, "c"))
            asked = OffsetForLeaderEpochRequest(replica_id=FOLLOWER, topics=[ended])
            result = run_whole(offset_for_leader_epoch.handle(bed.context, exchange, asked))
            assert result.topics[0].partitions[0].error_code == 31
        assert acknowledged.calls == []

    def test_a_follower_is_told_the_log_end(self, bed: Bed) -> None:
        bed.harness.append(bed.lead(isr=(ME, FOLLOWER)), 3)
        listed = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        connection = Connection(bed, FOLLOWER)
        assert self.listed(bed, connection, ListOffsetsRequest(replica_id=FOLLOWER, topics=[listed])) == (0, 3)
        assert self.listed(bed, connection, ListOffsetsRequest(replica_id=-1, topics=[listed])) == (0, 0)

    @staticmethod
    def listed(bed: Bed, connection: Connection, request: ListOffsetsRequest) -> tuple[int, int]:
        exchange = Exchange(connection, (2, 9, 1, "c"))
        result = run_whole(list_offsets.handle(bed.context, exchange, request)).topics[0].partitions[0]
        return result.error_code, result.offset


def offset_found(bed: Bed, version: int, timestamp: int, isolation_level: int = 0) -> tuple[int, int]:
    """Return what a consumer is answered that asks for the offset of a time: error code and offset."""
    asked = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    exchange: Any = Exchange(Connection(bed), (2, version, 1, "c"))  # type: ignore[arg-type]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked])
    result = run_whole(list_offsets.handle(bed.context, exchange, request)).topics[0].partitions[0]
    return result.error_code, result.offset


class TestThrottled:
    """A fetch over its client's quota, by a stub that says for how long each one is throttled (KIP-219)."""

    class Stub:
        def __init__(self, *throttle_ms: int) -> None:
            self.left = list(throttle_ms)
            self.asked: list[int] = []

        counts_time = False

        def most_fetch_bytes(self, asked: int) -> int:
            return asked

        def throttle_time_ms(self, exchange: Exchange, response_bytes: int) -> int:
            self.asked.append(response_bytes)
            return self.left.pop(0)

    @staticmethod
    def bed(harness: Harness, quota: Stub, count: int = 3) -> Bed:
        bed = Bed(harness, QuotaOfAll(quota))
        partition = bed.lead()
        for _ in range(count):
            harness.append(partition, 1)
        return bed

    def test_what_a_throttled_fetch_would_have_answered_comes_with_the_next(self, harness: Harness) -> None:
        quota = self.Stub(0, 700, 0)
        bed = self.bed(harness, quota)
        connection = Connection(bed)
        first = opening()
        answer = connection.fetch(first)
        bed.harness.append(bed.partitions[TopicPartition(TOPIC, 0)], 2)
        behind = [(TOPIC_ID, [packed.FetchPartition(0, 3, 1 << 20)])]
        throttled = connection.fetch(going_on(first, answer, 1, topics=behind))
        assert (throttled.topics, throttled.throttle_time_ms, throttled.error_code) == ([], 700, 0)
        assert throttled.session_id == answer.session_id
        assert connection.muted_s == [0.7]
        # Neither the records nor the new high watermark count as received.
        late = connection.fetch(going_on(first, answer, 2))
        ((_, (one,)),) = late.topics
        assert (one.high_watermark, len(values_of(one.records)), late.throttle_time_ms) == (5, 2, 0)
        assert quota.asked[1] == quota.asked[2] > 0

    def test_a_throttled_opening_fetch_has_no_session(self, harness: Harness) -> None:
        quota = self.Stub(300, 0)
        bed = self.bed(harness, quota)
        connection = Connection(bed)
        throttled = connection.fetch(opening())
        assert (throttled.topics, throttled.throttle_time_ms, throttled.session_id) == ([], 300, 0)
        assert (connection.session.fetch_session, len(bed.context.fetch_sessions)) == (None, 0)
        assert not bed.partitions[TopicPartition(TOPIC, 0)].check_leader().consumers.watchers
        answer = connection.fetch(opening())
        assert answer.session_id > 0
        assert answer.topics

    def test_a_throttled_fetch_without_a_session_is_empty(self, harness: Harness) -> None:
        quota = self.Stub(300, 0)
        bed = self.bed(harness, quota)
        connection = Connection(bed)
        alone = opening()._replace(session_epoch=-1)
        throttled = connection.fetch(alone)
        assert (throttled.topics, throttled.throttle_time_ms) == ([], 300)
        assert len(connection.fetch(alone).topics) == 1

    def test_a_fetch_that_waited_is_throttled_too(self, harness: Harness) -> None:
        quota = self.Stub(0, 400, 0)
        bed = self.bed(harness, quota, 0)
        connection = Connection(bed)
        first = opening(max_wait_ms=WAIT_MS)
        connection.send(first)
        partition = bed.partitions[TopicPartition(TOPIC, 0)]
        bed.harness.append(partition, 1)
        answer = connection.receive()
        behind = [(TOPIC_ID, [packed.FetchPartition(0, 1, 1 << 20)])]
        connection.send(going_on(first, answer, 1, topics=behind))
        assert connection.receive_all() == []
        bed.harness.append(partition, 1)
        throttled = connection.receive()
        assert (throttled.topics, throttled.throttle_time_ms) == ([], 400)
        ((_, (one,)),) = connection.fetch(going_on(first, answer, 2)).topics
        assert len(values_of(one.records)) == 1


class TestReaders:
    """What readers of committed transactions alone see, where the last stable offset is below the visible end."""

    @pytest.fixture
    def stable(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Change its one number for another last stable offset."""
        stable = [1]
        monkeypatch.setattr(Bounds, "stable_end_offset", lambda bounds, _: min(stable[0], bounds.high_watermark))
        return stable

    def test_every_offset_is_looked_up_below_what_the_reader_sees(self, bed: Bed, stable: list[int]) -> None:
        partition = bed.lead()
        bed.harness.append(partition, 1)
        now_ms = bed.harness.clock.wall_ms()
        bed.harness.clock.advance(ms=10)
        bed.harness.append(partition, 1)
        for level, newest in ((0, 1), (1, 0)):
            found = {asked: offset_found(bed, 9, asked, level)[1] for asked in (-1, -3, now_ms + 1)}
            assert found == {-1: newest + 1, -3: newest, now_ms + 1: 1 if level == 0 else -1}

    def test_a_session_waits_behind_an_open_transaction_and_is_not_read_again_and_again(
        self, bed: Bed, stable: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        partition = bed.lead()
        for _ in range(3):
            bed.harness.append(partition, 1)
        connection = Connection(bed)
        first = opening(isolation_level=1, max_wait_ms=WAIT_MS)
        answer = connection.fetch(first)
        ((_, (one,)),) = answer.topics
        assert (one.high_watermark, one.last_stable_offset, len(values_of(one.records))) == (3, 1, 1)
        behind = [(TOPIC_ID, [packed.FetchPartition(0, 1, 1 << 20)])]
        connection.send(going_on(first, answer, 1, topics=behind))
        assert connection.receive_all() == []
        (session,) = {each.session for each in partition.check_leader().stable_readers.watchers}
        assert not session.news, "there is nothing to read for it"
        # A marker has come: its commit wakes those who wait for the last stable offset.
        stable[0] = 4
        bed.harness.append(partition, 1)
        ((_, (one,)),) = connection.receive().topics
        assert (one.last_stable_offset, len(values_of(one.records))) == (4, 3)

    def test_a_session_that_reads_as_another_waits_for_the_others_end(self, bed: Bed, stable: list[int]) -> None:
        partition = bed.lead()
        for _ in range(2):
            bed.harness.append(partition, 1)
        connection = Connection(bed)
        first = opening(isolation_level=1)
        answer = connection.fetch(first)
        behind = [(TOPIC_ID, [packed.FetchPartition(0, 1, 1 << 20)])]
        assert connection.fetch(going_on(first, answer, 1, topics=behind)).topics == []
        ((_, (one,)),) = connection.fetch(going_on(first, answer, 2, isolation_level=0)).topics
        assert len(values_of(one.records)) == 1
        leader = partition.check_leader()
        assert (len(leader.consumers.watchers), len(leader.stable_readers.watchers)) == (1, 0)


class TestNewLeaders:
    @pytest.mark.parametrize(("version", "code"), [(1, 5), (4, 5), (5, 78), (9, 78)])
    def test_the_end_is_not_known_before_what_was_shown_is(self, bed: Bed, version: int, code: int) -> None:
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.harness.append(partition, 3)
        partition.check_leader().follower_fetched(FOLLOWER, Incarnation(INCARNATION), 2)
        # By what it knows 2 are committed; the leader before may have shown the third.
        partition.become_leader(partition_state(ME, FOLLOWER, epoch=5, version=2))
        bed.harness.append(partition, 1)
        now_ms = bed.harness.clock.wall_ms()
        found = partial(offset_found, bed, version)
        not_known = [-1, now_ms + 1000] + [-3] * (version >= 7)
        assert {found(timestamp) for timestamp in not_known} == {(code, -1)}
        assert found(-2) == (0, 0)
        assert found(now_ms - 1000) == (0, 0)
        partition.check_leader().follower_fetched(FOLLOWER, Incarnation(INCARNATION), 3)
        assert (found(-1), found(now_ms + 1000)) == ((0, 3), (0, -1))

    def test_where_records_end_is_not_said_when_the_lease_is_over(self, bed: Bed) -> None:
        partition = bed.lead()
        bed.harness.append(partition, 3)
        now_ms = bed.harness.clock.wall_ms()
        bed.context.lease = lease = RegistryLease()
        found = partial(offset_found, bed, 9)
        # The end, a time behind the last record, the newest record: another leader may have later ones by now.
        behind = [-1, now_ms + 1000, -3]
        assert {found(timestamp) for timestamp in behind} == {(6, -1)}
        # What is there is there with every leader.
        assert [found(-2), found(now_ms - 1000)] == [(0, 0), (0, 0)]
        lease.renew(bed.harness.clock.monotonic_s(), 3000)
        assert [error for error, _ in map(found, behind)] == [0, 0, 0]


class TestHints:
    def test_a_fetch_is_told_who_leads_and_where(self, bed: Bed) -> None:
        bed.lead().resign(3, 5, 2)
        bed.set_leader(3, 5)
        connection = Connection(bed)
        expected = {15: (None, ()), 16: ((3, 5), [packed.NodeEndpoint(3, "three-OUTSIDE", 93, "rack")])}
        for version, (leader, endpoints) in expected.items():
            answer = connection.fetch(opening(max_wait_ms=WAIT_MS), version)
            ((_, (one,)),) = answer.topics
            assert (one.error_code, one.current_leader, answer.node_endpoints) == (6, leader, endpoints)
        # Where it cannot be reached, its name is something already; where there is none, nothing.
        bed.set_leader(2, 6)
        answer = connection.fetch(opening())
        assert (answer.topics[0][1][0].current_leader, answer.node_endpoints) == ((2, 6), ())
        bed.set_leader(-1, 6)
        assert connection.fetch(opening()).topics[0][1][0].current_leader is None

    def test_other_errors_name_nobody(self, bed: Bed) -> None:
        bed.lead()
        answer = Connection(bed).fetch(opening(9))
        assert (answer.topics[0][1][0].error_code, answer.topics[0][1][0].current_leader) == (1, None)

    @pytest.mark.parametrize("acks", [1, -1])
    def test_a_produce_is_told_who_leads_and_where(self, bed: Bed, acks: int) -> None:
        """At once, and when the leader goes while the produce waits."""
        partition = bed.lead(isr=(ME, FOLLOWER))
        bed.set_leader(3, 5)
        connection = Connection(bed)

        def outcomes(version: int) -> list[packed.ProduceResponse]:
            pieces, _ = packed.pack_produce_request(
                1, "c", version, acks, WAIT_MS, [(TOPIC, [(0, bytes(bed.harness.batch()))])]
            )
            frame = memoryview(bytearray(b"".join(bytes(piece) for piece in pieces)))  # type: ignore[arg-type]
            header, position = read_request_header(frame)
            exchange = Exchange(connection, header)
            response = produce.handle(bed.context, exchange, frame, position)
            if response is not None:
                exchange.answer(response)
            partition.resign(3, 5, 2)
            bed.harness.run_loop()
            found = [packed.parse_produce_response(each, version) for each in connection.answers]
            connection.answers.clear()
            return found

        if acks == 1:
            partition.resign(3, 5, 2)
        (answer,) = outcomes(10)
        ((_, (one,)),) = answer.topics
        assert (one.error_code, one.current_leader) == (6, (3, 5))
        assert answer.node_endpoints == [packed.NodeEndpoint(3, "three-OUTSIDE", 93, "rack")]
        (answer,) = outcomes(9)
        assert (answer.topics[0][1][0].error_code, answer.topics[0][1][0].current_leader) == (6, None)


class TestSessionsInAll:
    def opened(self, bed: Bed, *, broker_id: int | None = None) -> tuple[Connection, packed.FetchResponse]:
        connection = Connection(bed, broker_id)
        connection.received_s = bed.now_s  # type: ignore[attr-defined]
        request = opening() if broker_id is None else follower(opening())
        return connection, connection.fetch(request)

    @pytest.fixture(autouse=True)
    def _lead(self, bed: Bed, acknowledged: Acknowledged) -> None:
        bed.lead(isr=(ME, FOLLOWER))
        bed.now_s = 0.0  # type: ignore[attr-defined]

    def test_a_slot_is_given_up_by_who_does_not_use_it(self, bed: Bed) -> None:
        (first, one), (second, two) = self.opened(bed), self.opened(bed)
        assert one.session_id and two.session_id and not self.opened(bed)[1].session_id
        bed.now_s = first.received_s = EVICTION_S  # type: ignore[attr-defined]
        assert first.fetch(going_on(opening(), one, 1)).error_code == 0
        bed.now_s = EVICTION_S + 1  # type: ignore[attr-defined]
        assert self.opened(bed)[1].session_id
        assert second.fetch(going_on(opening(), two, 1)).error_code == 70
        # Now the first has been there for long, and is not larger than the next.
        assert self.opened(bed)[1].session_id
        assert first.fetch(going_on(opening(), one, 2)).error_code == 70
        assert not self.opened(bed)[1].session_id

    def test_one_whose_slot_is_given_away_does_not_wait_on(self, bed: Bed) -> None:
        (waiting, one), _ = self.opened(bed), self.opened(bed)
        waiting.send(going_on(opening(), one, 1, max_wait_ms=WAIT_MS))
        bed.now_s = EVICTION_S + 1  # type: ignore[attr-defined]
        assert self.opened(bed)[1].session_id
        assert waiting.receive().topics == []

    def test_followers_need_no_slot(self, bed: Bed) -> None:
        assert all(self.opened(bed)[1].session_id for _ in range(2))
        assert self.opened(bed, broker_id=FOLLOWER)[1].session_id
        assert (len(bed.context.fetch_sessions), bed.context.fetch_sessions.partition_count) == (2, 2)

    def test_no_slots_no_sessions(self, bed: Bed) -> None:
        bed.config["max.incremental.fetch.session.cache.slots"] = 0
        assert not self.opened(bed)[1].session_id

    def test_nothing_is_left_of_a_connection_that_closes(self, bed: Bed) -> None:
        partition = bed.partitions[TopicPartition(TOPIC, 0)]
        connection, _ = self.opened(bed)
        leader = partition.check_leader()
        assert (len(leader.consumers.watchers), bed.context.fetch_sessions.partition_count) == (1, 1)
        connection.close("for a test")
        sessions = bed.context.fetch_sessions
        assert (len(leader.consumers.watchers), len(sessions), sessions.partition_count) == (0, 0, 0)

    def test_what_sessions_hold_is_bounded(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch_sessions, "MOST_PARTITIONS", 3)
        monkeypatch.setattr(fetch_sessions, "MOST_PARTITIONS_IN_ALL", 5)

        def asked(*numbers: int) -> Any:
            return [(TOPIC_ID, [packed.FetchPartition(number, 0, 1) for number in numbers])]

        sessions = bed.context.fetch_sessions
        connection = Connection(bed)
        request = opening()._replace(topics=asked(0, 1, 2, 3))
        assert not connection.fetch(request).session_id
        # Named twice it counts once.
        answer = connection.fetch(request._replace(topics=asked(0, 1, 1)))
        assert answer.session_id and sessions.partition_count == 2
        assert connection.fetch(going_on(request, answer, 1, topics=asked(2, 0))).error_code == 0
        assert connection.fetch(going_on(request, answer, 2, topics=asked(4))).error_code == 70
        assert (len(sessions), sessions.partition_count) == (0, 0)
        assert Connection(bed).fetch(request._replace(topics=asked(0, 1, 2))).session_id
        assert not Connection(bed).fetch(request._replace(topics=asked(0, 1, 2))).session_id
        assert Connection(bed).fetch(request._replace(topics=asked(0, 1))).session_id
        assert sessions.partition_count == 5

    def test_sessions_keep_no_name_that_no_topic_can_have(self, bed: Bed) -> None:
        def asked(name: str) -> Any:
            return [(name, [packed.FetchPartition(0, 0, 1)])]

        connection, sessions = Connection(bed), bed.context.fetch_sessions
        assert not connection.fetch(opening()._replace(topics=asked("x" * 250)), version=12).session_id
        answer = connection.fetch(opening()._replace(topics=asked("x" * 249)), version=12)
        assert answer.session_id and len(sessions) == 1
        more = going_on(opening(), answer, 1, topics=asked("x" * 32_000))
        assert connection.fetch(more, version=12).error_code == 70
        assert (len(sessions), sessions.partition_count) == (0, 0)

    def test_a_partition_that_is_served_no_more_is_refused_at_once(self, bed: Bed) -> None:
        partition = bed.lead()
        bed.harness.append(partition, 3)
        connection = Connection(bed)
        request = opening(epoch=4)
        answer = connection.fetch(request)
        (in_session,) = connection.session.fetch_session.partitions.values()
        leader = partition.role
        assert in_session.led == (partition, leader)
        # It is closed when its turn comes, which may be long after that.
        bed.partitions.clear()
        bed.harness.append(partition, 1)
        answer = connection.fetch(going_on(request, answer, 1))
        assert [(one.error_code, one.records) for _, ones in answer.topics for one in ones] == [(3, b"")]

    def test_a_session_that_does_not_go_on_holds_nothing_of_a_leader_that_has_ended(self, bed: Bed) -> None:
        partition = bed.lead()
        connection = Connection(bed)
        connection.fetch(opening(epoch=4))
        (in_session,) = connection.session.fetch_session.partitions.values()
        assert in_session.led is not None
        partition.close()
        assert in_session.led is None

    def test_a_round_looks_only_at_what_has_news(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        partition = bed.partitions[TopicPartition(TOPIC, 0)]
        monkeypatch.setattr(bed.context.replicas, "get", lambda _: partition)
        asked_bytes: list[int] = []
        read = Leader.read

        def counted(leader: Leader, start_offset: int, max_bytes: int, **options: Any) -> LogSlice | None:
            asked_bytes.append(max_bytes)
            return read(leader, start_offset, max_bytes, **options)

        monkeypatch.setattr(Leader, "read", counted)
        connection = Connection(bed)
        many = [(TOPIC_ID, [packed.FetchPartition(number, 0, 1 << 20) for number in range(900)])]
        request = opening()._replace(topics=many)
        answer = connection.fetch(request)
        assert len(answer.topics[0][1]) == 900
        assert connection.fetch(going_on(request, answer, 1)).topics == []
        assert len(asked_bytes) >= 900
        asked_bytes.clear()
        assert connection.fetch(going_on(request, answer, 2)).topics == []
        assert asked_bytes == []
        one = [(TOPIC_ID, [packed.FetchPartition(7, 0, 9)])]
        assert connection.fetch(going_on(request, answer, 3, topics=one)).topics == []
        assert asked_bytes == [9]
