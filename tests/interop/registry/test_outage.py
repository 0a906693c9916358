"""Three brokers whose registry is away: what goes on meanwhile, and how soon everything is as before."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.znodes import LeaderAndIsr
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.testing.batches import make_batch
from spark_kafkalite.testing.cluster import BrokerProcess, RegistryProcess
from tests.contract.forwarder import Forwarder
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S

SESSION_MS = 2000
PARTITIONS = 6


def eventually(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "it has not come"
        time.sleep(0.01)


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
                    self._ending.wait(0.01)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ending.set()
        self.join(PATIENCE_S)
        if self.error is not None:
            raise self.error

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
        eventually(self.all_in_sync)
        data, _ = self.store.get(znodes.state_path("alone", 0)).result(PATIENCE_S)
        leader = self.brokers[LeaderAndIsr.decode("alone", 0, data).leader - 1]
        self.client = stack.enter_context(RawClient(leader.bootstrap))
        self.producing = Producing(self.bootstrap)
        self.producing.start()
        eventually(lambda: len(self.producing.values[-1]) > 20 or self.producing.error)

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
        found: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        expected = sum(map(len, self.producing.values))
        with Consumer(bootstrap_servers=self.bootstrap) as consumer:
            consumer.assign([("t", number) for number in range(PARTITIONS)])
            consumer.seek_to_beginning()
            until_s = time.monotonic() + PATIENCE_S
            while sum(map(len, found)) < expected and time.monotonic() < until_s:
                for record in consumer.poll(timeout_ms=200):
                    found[record.partition].append(record.value)
        assert found == self.producing.values
        for broker in self.brokers:
            # As a follower says it (tests/unit/broker/replication/test_replica_fetcher.py).
            assert "cut back from offset" not in broker.stderr_path.read_text()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    with contextlib.ExitStack() as stack:
        yield Three(tmp_path, stack)


def test_all_brokers_lose_their_sessions_at_once(three: Three) -> None:
    before, epochs = three.registered(), [state.leader_epoch for state, _ in three.states()]
    cut_s = time.monotonic()
    three.link.cut()
    eventually(lambda: three.registered() == [])
    # Nobody has told the brokers.
    time.sleep(SESSION_MS / 1000)
    mended_s = time.monotonic()
    assert three.producing.longest_gap_s(cut_s, mended_s) < 1
    three.link.mend()

    def as_before() -> bool:
        now = three.registered()
        return len(now) == 3 and not set(now) & set(before) and three.all_in_sync()

    eventually(as_before, 2)
    # Time for those that were told late to do what they would not have done earlier.
    eventually(lambda: time.monotonic() > mended_s + 4)
    assert as_before()
    gap_s = three.producing.longest_gap_s(cut_s, time.monotonic())
    print(f"longest gap between acknowledgements: {gap_s:.2f} s")
    assert gap_s < 2
    after = [state.leader_epoch for state, _ in three.states()]
    print(f"leader epochs {epochs} -> {after}")
    three.check_records()


@pytest.mark.parametrize("outage_s", [0.5, 5.0])
def test_a_registry_that_is_killed_and_comes_back_changes_nothing(three: Three, outage_s: float) -> None:
    """Shorter and longer than the session: ``kafkalite registry`` keeps sessions."""
    before, states = three.registered(), three.states()
    three.store.close()
    killed_s = time.monotonic()
    three.registry.kill()
    time.sleep(outage_s)
    assert three.acknowledges_alone() == (outage_s < SESSION_MS / 1000)
    three.registry.start()
    eventually(three.acknowledges_alone, 1.5)
    # Longer than a session: who has not come back is gone.
    time.sleep(1.5 * SESSION_MS / 1000)
    three.store = open_zookeeper(three.registry.connect)
    assert three.registered() == before
    assert three.states() == states
    assert three.producing.longest_gap_s(killed_s, time.monotonic()) < 1
    three.check_records()
    # And the cluster can change again.
    with Admin(bootstrap_servers=three.bootstrap) as admin:
        admin.create_topic("u", 3, replication_factor=3)
