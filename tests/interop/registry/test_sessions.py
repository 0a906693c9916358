"""A broker whose registry is elsewhere loses its session: it leads nothing until the next one, and clients go on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import KafkaliteError, RebalanceInProgress
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.served.server import TreeServer
from spark_kafkalite.registry.store import Delete, Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.znodes import LeaderAndIsr
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.contract.forwarder import Forwarder
from tests.interop.support.collect import collected
from tests.interop.support.running_broker import RunningBroker, running_broker
from tests.lab.fake_registry import FakeRegistry, Fault, expire_after, expire_before
from tests.patience import PATIENCE_S, wait_until


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        # It waits for several conditions.
        await asyncio.wait_for(work, 4 * PATIENCE_S)

    asyncio.run(bounded())


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[FakeRegistry]:
    with FakeRegistry(tmp_path / "registry") as registry:
        yield registry


def leader_epochs(store: Store, topic: str, count: int) -> list[int]:
    states = [
        LeaderAndIsr.decode(topic, number, store.get(znodes.state_path(topic, number)).result()[0])
        for number in range(count)
    ]
    assert all(state.leader == 1 for state in states)
    return [state.leader_epoch for state in states]


def read_all(bootstrap: str, topic: str, count: int) -> dict[int, list[bytes | None]]:
    """Return the values of each partition, ``count`` in all."""
    found: dict[int, list[bytes | None]] = {0: [], 1: []}
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.seek_to_beginning()
        for record in collected(lambda: consumer.poll(timeout_ms=500), count):
            found[record.partition].append(record.value)
        assert consumer.poll(timeout_ms=200) == []
    return found


class Producing(threading.Thread):
    """Sends one record after the other until ``end``; each must be acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.sent: dict[int, list[bytes]] = {0: [], 1: []}
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._address = bootstrap
        self._topic = topic
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._address, linger_ms=0) as producer:
                while not self._ending.is_set():
                    for partition in (0, 1):
                        value = b"%d" % len(self.sent[partition])
                        delivery = producer.send(self._topic, value, partition=partition)
                        self.sent[partition].append(value)
                        delivery.result(PATIENCE_S)
                        self.acknowledged += 1
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ending.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def serve(directory: Path, open_store: Callable[[], Future[Store]], use: Callable[[RunningBroker], None]) -> None:
    """Run a broker, and ``use`` it in another thread."""

    async def work() -> None:
        async with running_broker(directory, open_store) as running:
            await asyncio.to_thread(use, running)

    run(work())


def create(bootstrap: str, *topics: str, partitions: int = 2) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, value, partition=0).result(PATIENCE_S)


def test_clients_go_on_over_sessions_that_are_lost(tmp_path: Path, registry: FakeRegistry) -> None:
    def use(running: RunningBroker) -> None:
        observer, address = registry.connect(), running.bootstrap
        create(address, "t")
        producing = Producing(address, "t")
        producing.start()
        with Consumer(bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as group:
            group.subscribe(["t"])
            seen: list[bytes | None] = []

            def has_read(count: int) -> bool:
                seen.extend(record.value for record in group.poll(timeout_ms=100))
                with contextlib.suppress(RebalanceInProgress):  # the next poll joins the group
                    group.commit()
                return len(seen) >= count

            wait_until(lambda: has_read(20), "twenty records to be read")
            for _ in range(3):
                registry.expire()
                before, read = producing.acknowledged, len(seen)
                wait_until(
                    lambda before=before: producing.error or producing.acknowledged > before + 20,
                    "acknowledgements to go on",
                )
                # The group's coordinator has its offsets from the log again.
                wait_until(lambda read=read: has_read(read + 20), "twenty more records to be read")
                # Nobody else was elected, and the process is the same.
                assert leader_epochs(observer, "t", 2) == [0, 0]
            producing.end()
            total = sum(map(len, producing.sent.values()))
            wait_until(lambda: has_read(total), "all records to be read")
        # Nothing lost, doubled or reordered.
        assert len(seen) == total
        assert read_all(address, "t", total) == producing.sent
        observer.close()

    serve(tmp_path / "data", registry.open_session, use)


def test_without_a_session_nothing_is_led_and_the_last_metadata_stands(tmp_path: Path, registry: FakeRegistry) -> None:
    def use(running: RunningBroker) -> None:
        address = running.bootstrap
        create(address, "t")
        with Admin(bootstrap_servers=address) as admin, Producer(bootstrap_servers=address) as producer:
            producer.send("t", b"0", partition=0).result(PATIENCE_S)
            registry.become_unreachable()
            registry.expire()
            wait_until(lambda: registry._waiting, "the broker to ask for another session")
            late = producer.send("t", b"1", partition=0)
            assert admin.list_topics() == ["t"]
            with Admin(bootstrap_servers=address, default_api_timeout_ms=1000) as hasty, pytest.raises(KafkaliteError):
                hasty.create_topic("no", 1)
            with (
                Producer(bootstrap_servers=address, request_timeout_ms=400, delivery_timeout_ms=500) as hasty_producer,
                pytest.raises(KafkaliteError),
            ):
                hasty_producer.send("t", b"never", partition=1).result(PATIENCE_S)
            assert not late.done()
            registry.become_reachable()
            late.result(PATIENCE_S)
            admin.create_topic("yes", 1)
        assert read_all(address, "t", 2) == {0: [b"0", b"1"], 1: []}

    serve(tmp_path / "data", registry.open_session, use)


def test_a_broker_without_a_session_stops_cleanly(tmp_path: Path, registry: FakeRegistry) -> None:
    def lose_session(running: RunningBroker) -> None:
        create(running.bootstrap, "t")
        produce(running.bootstrap, "t", b"0")
        registry.become_unreachable()
        registry.expire()
        wait_until(lambda: registry._waiting, "the broker to ask for another session")

    async def work() -> None:
        async with running_broker(tmp_path / "data", registry.open_session) as running:
            # There is not going to be another session: a stop that waited for one would not end.
            await asyncio.to_thread(lose_session, running)
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()

    run(work())
    registry.become_reachable()
    found: list[object] = []
    serve(
        tmp_path / "data",
        registry.open_session,
        lambda running: found.append(read_all(running.bootstrap, "t", 1)),
    )
    assert found == [{0: [b"0"], 1: []}]


@pytest.mark.parametrize("fault", [expire_before, expire_after])
@pytest.mark.parametrize(
    "path", ["/cluster/id", "/brokers/topics/t/partitions/0/state", "/brokers/ids/1", "/controller", "/admin"]
)
def test_a_session_lost_during_a_start_is_followed_by_another(
    tmp_path: Path, registry: FakeRegistry, path: str, fault: Fault
) -> None:
    def fill(running: RunningBroker) -> None:
        create(running.bootstrap, "t")
        produce(running.bootstrap, "t", b"0")

    def look(running: RunningBroker) -> None:
        assert not registry.armed
        assert read_all(running.bootstrap, "t", 1) == {0: [b"0"], 1: []}

    serve(tmp_path / "data", registry.open_session, fill)
    registry.arm(path, fault)
    serve(tmp_path / "data", registry.open_session, look)


def test_topics_that_go_meanwhile_are_set_aside_and_damaged_ones_keep_their_logs(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    data = tmp_path / "data"

    def use(running: RunningBroker) -> None:
        observer = registry.connect()
        create(running.bootstrap, "goes", "damaged")
        produce(running.bootstrap, "damaged", b"0")
        registry.become_unreachable()
        registry.expire()
        topic = znodes.topic_path("goes")
        for number in range(2):
            below = f"{topic}/partitions/{number}"
            observer.multi([Delete(f"{below}/state"), Delete(below)]).result()
        observer.multi([Delete(f"{topic}/partitions"), Delete(topic)]).result()
        good, _ = observer.get(znodes.topic_path("damaged")).result()
        observer.set(znodes.topic_path("damaged"), b"{").result()
        registry.become_reachable()
        # The registry may be an older copy of itself.
        wait_until(
            lambda: len(list(data.glob("goes-?.*-stray"))) == 2, "the logs of the topic that went to be set aside"
        )
        assert (data / "damaged-0").is_dir()
        # What can be read again is served again, with what it held.
        observer.set(znodes.topic_path("damaged"), good).result()
        assert read_all(running.bootstrap, "damaged", 1) == {0: [b"0"], 1: []}
        observer.close()

    serve(data, registry.open_session, use)


def test_a_topic_that_is_made_again_after_its_node_was_damaged_is_another_one(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    def use(running: RunningBroker) -> None:
        observer = registry.connect()
        create(running.bootstrap, "t")
        produce(running.bootstrap, "t", b"old")
        registry.become_unreachable()
        registry.expire()
        observer.set(znodes.topic_path("t"), b"{").result()
        registry.become_reachable()
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            wait_until(lambda: admin.list_topics() == [], "the damaged topic not to be listed")
            admin.delete_topics(["t"])
            admin.create_topic("t", 2)
        produce(running.bootstrap, "t", b"new")
        assert read_all(running.bootstrap, "t", 1) == {0: [b"new"], 1: []}
        # Nobody knew whose the old logs were.
        assert len(list((tmp_path / "data").glob("t-0.*-stray"))) == 1
        observer.close()

    serve(tmp_path / "data", registry.open_session, use)


def test_a_session_over_zookeepers_protocol_that_expires_is_followed_by_another(tmp_path: Path) -> None:
    """The seam is that of a registry elsewhere: the same over a connection that is cut for longer than the session."""
    chroot = uuid.uuid4().hex
    with (
        EmbeddedRegistry(tmp_path / "served") as served,
        contextlib.closing(TreeServer(served)) as server,
        ThreadPoolExecutor(1) as opener,
        Forwarder(port := server.start("127.0.0.1", 0)) as link,
        contextlib.closing(open_zookeeper(f"127.0.0.1:{port}/{chroot}")) as observer,
    ):

        def open_session() -> Future[Store]:
            return opener.submit(
                open_zookeeper, f"{link.address}/{chroot}", session_timeout_ms=1500, connect_timeout_s=PATIENCE_S
            )

        def use(running: RunningBroker) -> None:
            create(running.bootstrap, "t")
            producing = Producing(running.bootstrap, "t")
            producing.start()
            wait_until(lambda: producing.acknowledged > 20, "twenty acknowledgements")
            link.cut()
            # Others see that it has gone.
            wait_until(lambda: observer.exists(znodes.broker_path(1)).result() is None, "the session to end")
            link.mend()
            wait_until(lambda: observer.exists(znodes.broker_path(1)).result() is not None, "another session")
            before = producing.acknowledged
            wait_until(lambda: producing.error or producing.acknowledged > before + 20, "acknowledgements to go on")
            producing.end()
            assert leader_epochs(observer, "t", 2) == [0, 0]
            total = sum(map(len, producing.sent.values()))
            assert read_all(running.bootstrap, "t", total) == producing.sent

        serve(tmp_path / "data", open_session, use)
