"""Three brokers whose registry is away: what goes on meanwhile, and that everything is as before.

How soon it is, and how long producers wait at most, is measured in the soak.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.errors import RebalanceInProgress
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.znodes import LeaderAndIsr
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.contract.forwarder import Forwarder
from tests.contract.protocol_client import ProtocolClient
from tests.contract.test_tree_protocol import CREATE, create
from tests.interop.support.collect import collected
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SOAK

# A machine that stands still for less costs nobody a session.
SESSION_MS = 2000 if SOAK else 6000
PARTITIONS = 6
EPHEMERAL = 1


class Producing(threading.Thread):
    """Sends to every partition in turn; each record must be acknowledged by all, and is noted with its time."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.acknowledged_s: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self.error: BaseException | None = None
        self._servers = bootstrap
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._servers, acks="all", linger_ms=0) as producer:
                while not self._ending.is_set():
                    number = len(self.values[0])
                    deliveries = [
                        producer.send("t", b"%d" % number, partition=partition) for partition in range(PARTITIONS)
                    ]
                    for partition, delivery in enumerate(deliveries):
                        delivery.result(PATIENCE_S)
                        self.values[partition].append(b"%d" % number)
                        self.acknowledged_s[partition].append(time.monotonic())
                    self._ending.wait(0.1)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ending.set()
        self.join(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def go_on(self) -> None:
        """Wait until seven more records of each partition are acknowledged."""
        wanted = [len(values) + 7 for values in self.values]
        wait_until(
            lambda: self.error or all(len(v) >= n for v, n in zip(self.values, wanted, strict=True)),
            lambda: f"{wanted} acknowledged records, of which there are {[len(values) for values in self.values]}",
        )
        assert self.error is None, self.error

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time between two acknowledgements of one partition."""
        gaps = []
        for times in self.acknowledged_s:
            within = [since_s, *(at_s for at_s in times if since_s <= at_s <= until_s), until_s]
            gaps += [later - earlier for earlier, later in itertools.pairwise(within)]
        return max(gaps)


class Three:
    """Three brokers that reach their registry through one forwarder, and a producer."""

    def __init__(self, tmp_path: Path, stack: contextlib.ExitStack) -> None:
        self.registry = stack.enter_context(RegistryProcess(tmp_path / "registry"))
        self.link = stack.enter_context(Forwarder(self.registry.port))
        self.brokers = [
            stack.enter_context(
                BrokerProcess(
                    tmp_path / f"broker-{number}",
                    overrides={
                        "broker.id": number,
                        "zookeeper.connect": self.link.address,
                        "zookeeper.session.timeout.ms": SESSION_MS,
                        "offsets.topic.num.partitions": 1,
                    },
                )
            )
            for number in (1, 2, 3)
        ]
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topic("t", PARTITIONS, replication_factor=3)
            # What one broker leads without followers goes on for as long as it has its lease.
            admin.create_topic("alone", 1, replication_factor=1)
        self.store: Store = open_zookeeper(self.registry.connect)
        stack.callback(lambda: self.store.close())
        wait_until(self.all_in_sync, "all replicas to be in sync")
        data, _ = self.store.get(znodes.state_path("alone", 0)).result(PATIENCE_S)
        leader = self.brokers[LeaderAndIsr.decode("alone", 0, data).leader - 1]
        self.client = stack.enter_context(RawClient(leader.bootstrap))
        self.producing = Producing(self.bootstrap)
        self.producing.start()
        self.producing.go_on()

    def states(self) -> list[tuple[LeaderAndIsr, int]]:
        """Return each partition's state with the transaction that wrote it."""
        found = [self.store.get(znodes.state_path("t", number)).result(PATIENCE_S) for number in range(PARTITIONS)]
        return [(LeaderAndIsr.decode("t", number, data), stat.mzxid) for number, (data, stat) in enumerate(found)]

    def all_in_sync(self) -> bool:
        return all(state.leader >= 0 and len(state.isr) == 3 for state, _ in self.states())

    def acknowledges_alone(self) -> bool:
        return not self.client.produce("alone", make_batch([b"x"]), acks=1).error_code

    def registered(self) -> list[int]:
        """Return the broker epochs of those that live."""
        stats = [self.store.exists(znodes.broker_path(number)).result(PATIENCE_S) for number in (1, 2, 3)]
        return [stat.czxid for stat in stats if stat is not None]

    def check_records(self) -> None:
        """Everything that was acknowledged is there once, in order; nothing was cut."""
        self.producing.end()
        expected = sum(map(len, self.producing.values))
        with Consumer(bootstrap_servers=self.bootstrap) as consumer:
            consumer.assign([("t", number) for number in range(PARTITIONS)])
            consumer.seek_to_beginning()
            records = collected(lambda: consumer.poll(timeout_ms=200), expected)
        found: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        for record in records:
            found[record.partition].append(record.value)
        assert found == self.producing.values
        for broker in self.brokers:
            # As a follower says it (tests/unit/broker/replication/test_replica_fetcher.py).
            assert "cut back from offset" not in broker.stderr_path.read_text()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    with contextlib.ExitStack() as stack:
        yield Three(tmp_path, stack)


class Times(NamedTuple):
    """How long producers waited at most without the registry and in all, and until everything was as before."""

    outage_s: float
    whole_s: float
    as_before_s: float


def lose_all_sessions(three: Three) -> Times:
    before, epochs = three.registered(), [state.leader_epoch for state, _ in three.states()]
    cut_s = time.monotonic()
    three.link.cut()
    wait_until(lambda: three.registered() == [], "the sessions to end")
    # Nobody has told the brokers. What one of them leads alone ends with its lease, what all confirm goes on.
    wait_until(lambda: not three.acknowledges_alone(), "the lease to end")
    three.producing.go_on()
    mended_s = time.monotonic()
    three.link.mend()

    def as_before() -> bool:
        now = three.registered()
        return len(now) == 3 and not set(now) & set(before) and three.all_in_sync()

    wait_until(as_before, lambda: f"new sessions and full ISRs; there are {three.registered()}, {three.states()}")
    as_before_s = time.monotonic()
    # Another round for all: a broker that heard of it late would have done by now what it should not do.
    with Admin(bootstrap_servers=three.bootstrap) as admin:
        admin.create_topic("u", 3, replication_factor=3)
    three.producing.go_on()
    assert as_before()
    times = Times(
        three.producing.longest_gap_s(cut_s, mended_s),
        three.producing.longest_gap_s(cut_s, time.monotonic()),
        as_before_s - mended_s,
    )
    after = [state.leader_epoch for state, _ in three.states()]
    print(f"{times}, leader epochs {epochs} -> {after}")
    three.check_records()
    return times


def test_all_brokers_lose_their_sessions_at_once(three: Three) -> None:
    lose_all_sessions(three)


@pytest.mark.soak
def test_producers_hardly_wait_when_all_sessions_are_lost(three: Three) -> None:
    times = lose_all_sessions(three)
    assert times.outage_s < 1
    assert times.whole_s < 2
    assert times.as_before_s < 2


def lose_registry(three: Three, *, lease_ends: bool) -> Times:
    """Kill the registry; let its brokers' lease end, or not; start it again, and let a session's time pass."""
    before, states = three.registered(), three.states()
    with ProtocolClient(three.registry.connect, timeout_ms=SESSION_MS) as other:
        assert other.ask(CREATE, create("/other", flags=EPHEMERAL)).error == 0
    three.store.close()
    killed_s = time.monotonic()
    three.registry.kill()
    if lease_ends:
        wait_until(lambda: not three.acknowledges_alone(), "the lease to end")
    three.producing.go_on()
    three.registry.start()
    started_s = time.monotonic()
    wait_until(three.acknowledges_alone, "the lease to go on")
    alone_s = time.monotonic()
    three.store = open_zookeeper(three.registry.connect)
    # The session of one that has not come back is gone, so those of the brokers would be.
    wait_until(lambda: three.store.exists("/other").result(PATIENCE_S) is None, "the other session to end")
    assert three.registered() == before
    assert three.states() == states
    gap_s = three.producing.longest_gap_s(killed_s, time.monotonic())
    three.check_records()
    # And the cluster can change again.
    with Admin(bootstrap_servers=three.bootstrap) as admin:
        admin.create_topic("u", 3, replication_factor=3)
    return Times(gap_s, gap_s, alone_s - started_s)


@pytest.mark.parametrize("lease_ends", [False, True])
def test_a_registry_that_is_killed_and_comes_back_changes_nothing(three: Three, lease_ends: bool) -> None:
    """``kafkalite registry`` keeps sessions."""
    lose_registry(three, lease_ends=lease_ends)


@pytest.mark.soak
def test_producers_hardly_wait_when_the_registry_is_killed(three: Three) -> None:
    times = lose_registry(three, lease_ends=True)
    assert times.whole_s < 1
    assert times.as_before_s < 1.5


def test_groups_go_on_without_the_registry(three: Three) -> None:
    """A coordinator asks its followers whether it still leads (R20): offsets are committed, members come and go."""
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    read: dict[TopicPartition, list[int]] = {each: [] for each in partitions}

    def poll(consumer: Consumer) -> None:
        for record in consumer.poll(100):
            read[TopicPartition(record.topic, record.partition)].append(record.offset)
        # A commit in the middle of a rebalance is refused, and its records are read again.
        with contextlib.suppress(RebalanceInProgress):
            consumer.commit()

    def goes_on(*consumers: Consumer) -> None:
        wanted = {each: len(read[each]) + 20 for each in partitions}

        def have_read() -> bool:
            for consumer in consumers:
                poll(consumer)
            return all(len(read[each]) >= wanted[each] for each in partitions)

        wait_until(have_read, "the group to read on", poll_s=0)

    group = {"bootstrap_servers": three.bootstrap, "group_id": "g", "auto_offset_reset": "earliest"}
    with Consumer(**group, max_poll_interval_ms=600_000) as first:  # type: ignore[arg-type]
        first.subscribe(["t"])
        goes_on(first)
        three.registry.kill()
        wait_until(lambda: not three.acknowledges_alone(), "the lease to end")
        goes_on(first)
        assert all(offsets == list(range(len(offsets))) for offsets in read.values())
        with Consumer(**group, max_poll_interval_ms=600_000) as second:  # type: ignore[arg-type]
            second.subscribe(["t"])

            def is_shared() -> bool:
                poll(first)
                poll(second)
                return len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2

            wait_until(is_shared, "the new member to have its share", poll_s=0)
            goes_on(first, second)
        with Admin(bootstrap_servers=three.bootstrap) as admin:
            wait_until(lambda: len(admin.describe_groups(["g"])["g"].members) == 1, "the second member to have left")
            goes_on(first)
            generation = first.generation_id
            committed = admin.group_offsets("g")
        assert not three.acknowledges_alone()
        three.registry.start()
        wait_until(three.acknowledges_alone, "the lease to go on")
        goes_on(first)
        assert first.generation_id == generation
    assert all(committed[each].offset > 0 for each in partitions)
    assert all(set(offsets) == set(range(max(offsets) + 1)) for offsets in read.values())
    three.producing.end()
