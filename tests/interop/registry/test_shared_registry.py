"""Brokers as processes on a registry elsewhere: ``kafkalite registry``, and a real ZooKeeper."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import NotLeaderOrFollower, UnknownMemberId
from spark_kafkalite.model import LATEST_TIMESTAMP
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.zookeeper import available
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import NoNode, Store
from spark_kafkalite.registry.znodes import INNER_WIRE_VERSION, BrokerRegistration
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.contract.forwarder import Forwarder
from tests.interop.support.collect import collected
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.lab.zookeeper_ensemble import ZooKeeperEnsemble
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SOAK

pytestmark = pytest.mark.sampled("connect")

# A machine that stands still for less costs nobody a session.
SESSION_MS = 2000 if SOAK else 6000
SERVERS = ["kafkalite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]


@pytest.fixture(scope="module")
def kafkalite_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    with RegistryProcess(tmp_path_factory.mktemp("registry") / "registry") as registry:
        yield registry


@pytest.fixture(params=SERVERS)
def connect(request: pytest.FixtureRequest) -> str:
    """A chroot of its own, which nobody has made."""
    server = request.getfixturevalue("kafkalite_registry" if request.param == "kafkalite" else "zookeeper")
    return f"{server.connect}/{uuid.uuid4().hex}/cluster"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def a_broker(directory: Path, connect: str, number: int = 1, **settings: object) -> BrokerProcess:
    overrides = {
        # Tests write records of long ago, which retention would take.
        "log.initial.task.delay.ms": 86_400_000,
        "zookeeper.connect": connect,
        "zookeeper.session.timeout.ms": SESSION_MS,
        "broker.id": number,
        "offsets.topic.num.partitions": 2,
        "offsets.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerProcess(directory / f"broker-{number}", overrides=overrides | given)


def observer(stack: contextlib.ExitStack, connect: str) -> Store:
    store = open_zookeeper(connect)
    stack.callback(store.close)
    return store


def registered(store: Store, number: int) -> BrokerRegistration | None:
    try:
        data, _ = store.get(znodes.broker_path(number)).result(PATIENCE_S)
    except NoNode:
        return None
    return BrokerRegistration.decode(number, data)


def registered_as(store: Store, number: int) -> int | None:
    """Return the broker epoch of a registration."""
    stat = store.exists(znodes.broker_path(number)).result(PATIENCE_S)
    return None if stat is None else stat.czxid


def create(bootstrap: str, *topics: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, 1, replication_factor=1)


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            producer.send(topic, value).result(PATIENCE_S)


def read_all(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        return [record.value for record in collected(lambda: consumer.poll(timeout_ms=200), count)]


def test_start_stop_kill_and_start_again(tmp_path: Path, connect: str, stack: contextlib.ExitStack) -> None:
    broker = stack.enter_context(a_broker(tmp_path, connect))
    store = observer(stack, connect)
    create(broker.bootstrap, "t")
    produce(broker.bootstrap, "t", b"0")
    first = registered(store, 1)
    assert first is not None
    assert (first.host, first.port) == (broker.host, broker.port)
    assert first.endpoints == (f"PLAINTEXT://{broker.bootstrap}",)
    assert (first.inner_listener, first.inner_wire_version) == ("PLAINTEXT", INNER_WIRE_VERSION)
    assert 0 < first.incarnation < 2**63
    assert not (broker.data_dir / "_registry").exists()
    # What the session really lasts is in the log; a stock ensemble grants no less than twice its tick.
    found = re.search(rf"it lasts (\d+) ms without a word \(asked for: {SESSION_MS} ms\)", broker.tail(200))
    assert found is not None
    assert broker.stop() == 0
    assert registered(store, 1) is None
    broker.start()
    second = registered(store, 1)
    assert second is not None
    assert second.incarnation != first.incarnation
    produce(broker.bootstrap, "t", b"1")
    broker.kill()
    # The node of the one that was killed is waited for, as long as its session lasts.
    broker.start()
    produce(broker.bootstrap, "t", b"2")
    assert read_all(broker.bootstrap, "t", 3) == [b"0", b"1", b"2"]


def test_a_second_broker_with_the_same_id_says_whose_it_is(
    tmp_path: Path, connect: str, stack: contextlib.ExitStack
) -> None:
    broker = stack.enter_context(a_broker(tmp_path / "a", connect))
    store = observer(stack, connect)
    before = store.exists(znodes.broker_path(1)).result(PATIENCE_S)
    second = a_broker(tmp_path / "b", connect)
    with pytest.raises(ChildFailed, match=rf"is taken by the broker at {broker.bootstrap}.*an id of its own"):
        second.start()
    assert store.exists(znodes.broker_path(1)).result(PATIENCE_S) == before
    assert "broker.id=1 is still registered: waiting up to" in second.stderr_path.read_text()
    # Its new directory is not the first broker's for all that.
    second.overrides["broker.id"] = 2
    with second:
        pass


def test_another_clusters_registry_and_an_emptied_one_are_refused(
    tmp_path: Path, kafkalite_registry: RegistryProcess, stack: contextlib.ExitStack
) -> None:
    mine, other, empty = (f"{kafkalite_registry.connect}/{uuid.uuid4().hex}" for _ in range(3))
    broker = stack.enter_context(a_broker(tmp_path, mine))
    create(broker.bootstrap, "t")
    produce(broker.bootstrap, "t", b"0")
    broker.stop()
    with a_broker(tmp_path / "other", other):
        pass
    broker.overrides["zookeeper.connect"] = other
    with pytest.raises(ChildFailed, match=r"meta\.properties.* belongs to cluster"):
        broker.start()
    broker.overrides["zookeeper.connect"] = empty
    with pytest.raises(ChildFailed, match="no /cluster/id, so it is new or has been emptied"):
        broker.start()
    assert observer(stack, empty).children("/").result(PATIENCE_S) == []
    broker.overrides["zookeeper.connect"] = mine
    broker.start()
    assert read_all(broker.bootstrap, "t", 1) == [b"0"]


def put(copy: bytes, directory: Path) -> None:
    """Have a registry's directory hold this database, and nothing else."""
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "registry.db").write_bytes(copy)


def test_an_older_copy_of_the_registry_is_not_believed(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    registry = stack.enter_context(RegistryProcess(tmp_path / "registry"))
    broker = stack.enter_context(a_broker(tmp_path, registry.connect))
    registry.stop()
    copy = (tmp_path / "registry" / "registry.db").read_bytes()
    registry.start()
    create(broker.bootstrap, "t")
    produce(broker.bootstrap, "t", b"0")
    note = broker.data_dir / "registry-zxid-checkpoint"
    store = observer(stack, registry.connect)
    # Sessions that begin and end on the copy are transactions too: it has to be further behind than they bring it.
    for _ in range(100):
        store.create("/n", sequential=True).result(PATIENCE_S)
    seen_zxid = store.seen_zxid
    wait_until(
        lambda: note.exists() and int(note.read_text().split()[-1]) >= seen_zxid, "the note of the last transaction"
    )
    store.close()
    broker.stop()
    registry.stop()
    newest = (tmp_path / "registry" / "registry.db").read_bytes()
    put(copy, tmp_path / "registry")
    registry.start()
    with pytest.raises(ChildFailed, match=r"the registry is older than the logs.*kafkalite cluster recover-registry"):
        broker.start()
    assert (broker.data_dir / "t-0").is_dir()
    registry.stop()
    put(newest, tmp_path / "registry")
    registry.start()
    broker.start()
    # A running broker cannot tell one that has come as far by other transactions, and deletes nothing for it.
    registry.stop()
    put(copy, tmp_path / "registry")
    broker.pause()
    registry.start()
    store = observer(stack, registry.connect)
    while store.seen_zxid < seen_zxid + 1000:
        store.create("/n", sequential=True).result(PATIENCE_S)
    broker.resume()
    wait_until(
        lambda: list(broker.data_dir.glob("t-0.*-stray")), "the log of a topic that is not there to be set aside"
    )
    assert broker.running


def test_a_registry_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    broker = a_broker(tmp_path, f"127.0.0.1:{port}", zookeeper_connection_timeout_ms=700)
    with pytest.raises(ChildFailed, match=rf"no ZooKeeper answers at 127\.0\.0\.1:{port} within 0\.7 s"):
        broker.start()


class Cut:
    """One broker whose way to its registry can be cut."""

    def __init__(self, tmp_path: Path, connect: str, stack: contextlib.ExitStack) -> None:
        address, _, chroot = connect.partition("/")
        self.link = stack.enter_context(Forwarder(int(address.rpartition(":")[2])))
        self.broker = stack.enter_context(a_broker(tmp_path, f"{self.link.address}/{chroot}"))
        self.store = observer(stack, connect)
        self.address = self.broker.bootstrap
        create(self.address, "t")
        with Consumer(bootstrap_servers=self.address, group_id="g") as consumer:
            consumer.subscribe(["t"])
            wait_until(
                lambda: consumer.poll(timeout_ms=100) == [] and consumer.assignment(),
                "the consumer to have its partition",
            )
            consumer.commit()
        self.client = stack.enter_context(RawClient(self.address))

    def produced(self, acks: int) -> int:
        return int(self.client.produce("t", make_batch([b"x"]), acks=acks).error_code)

    def latest(self) -> int:
        asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
        return int(self.client.call(request, 7).topics[0].partitions[0].error_code)

    def heartbeat(self) -> int:
        return int(self.client.call(HeartbeatRequest(group_id="g", member_id="m"), 4).error_code)


REFUSED = [NotLeaderOrFollower.code, NotLeaderOrFollower.code]


def test_acks_all_goes_on_for_the_whole_of_an_outage_and_what_is_alone_ends_with_the_lease(
    tmp_path: Path, connect: str, stack: contextlib.ExitStack
) -> None:
    cut = Cut(tmp_path, connect, stack)
    before = registered_as(cut.store, 1)
    assert [cut.produced(acks) for acks in (-1, 1)] == [0, 0]
    assert cut.latest() == 0
    cut.link.cut()
    acknowledged = 1
    alone = []
    # Until others see that its session is over, which it does not know.
    while registered(cut.store, 1) is not None:
        assert cut.produced(-1) == 0
        acknowledged += 1
        alone.append(cut.produced(1))
        time.sleep(0.02)
    # By then its lease has ended, once.
    assert set(alone) <= {0, NotLeaderOrFollower.code}
    assert alone == sorted(alone)
    assert [cut.produced(1), cut.latest()] == REFUSED
    # Groups go on: no other broker has a replica, so none can coordinate.
    assert cut.heartbeat() == UnknownMemberId.code
    for _ in range(20):
        assert cut.produced(-1) == 0
    cut.link.mend()
    # Others have seen it go.
    wait_until(lambda: registered_as(cut.store, 1) not in (None, before), "another registration")
    wait_until(lambda: cut.produced(1) == 0, "the lease to go on")
    assert cut.latest() == 0
    assert len(read_all(cut.address, "t", acknowledged)) >= acknowledged
    assert cut.broker.running


def test_a_broker_that_was_stopped_looks_at_its_lease_before_it_serves_what_has_come_meanwhile(
    tmp_path: Path, kafkalite_registry: RegistryProcess, stack: contextlib.ExitStack
) -> None:
    cut = Cut(tmp_path, f"{kafkalite_registry.connect}/{uuid.uuid4().hex}", stack)
    assert cut.produced(1) == 0
    cut.broker.pause()
    for acks in (1, -1):
        cut.client.send_produce([("t", [(0, make_batch([b"x"]))])], acks=acks)
    wait_until(lambda: registered(cut.store, 1) is None, "the session to end")
    cut.link.cut()
    cut.broker.resume()
    # Nothing has told the broker yet that its session is over.
    assert [cut.client.receive_produce().topics[0][1][0].error_code for _ in range(2)] == [
        NotLeaderOrFollower.code,
        0,
    ]
    cut.link.mend()
    wait_until(lambda: registered(cut.store, 1) is not None, "another registration")
    wait_until(lambda: cut.produced(1) == 0, "the lease to go on")


def test_a_session_that_is_lost_is_followed_by_another_of_the_same_incarnation(
    tmp_path: Path, connect: str, stack: contextlib.ExitStack
) -> None:
    cut = Cut(tmp_path, connect, stack)
    before = registered(cut.store, 1)
    cut.link.cut()
    wait_until(lambda: registered(cut.store, 1) is None, "the session to end")
    cut.link.mend()
    # How soon is in test_outage.py.
    wait_until(lambda: registered(cut.store, 1) is not None, "another registration")
    after = registered(cut.store, 1)
    assert before is not None
    assert after is not None
    assert after.incarnation == before.incarnation
    wait_until(lambda: cut.produced(1) == 0, "the lease to go on")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_registry_that_restarts_changes_nothing(tmp_path: Path, stack: contextlib.ExitStack, how: str) -> None:
    registry = stack.enter_context(RegistryProcess(tmp_path / "registry"))
    broker = stack.enter_context(a_broker(tmp_path, registry.connect))
    create(broker.bootstrap, "t")
    client = stack.enter_context(RawClient(broker.bootstrap))
    store = open_zookeeper(registry.connect)
    before = store.exists(znodes.broker_path(1)).result(PATIENCE_S)
    state = store.exists(znodes.state_path("t", 0)).result(PATIENCE_S)
    store.close()
    registry.kill() if how == "kill" else registry.stop()
    # Longer than its lease.
    while client.produce("t", make_batch([b"x"]), acks=1).error_code == 0:
        assert client.produce("t", make_batch([b"x"])).error_code == 0
        time.sleep(0.02)
    assert client.produce("t", make_batch([b"x"])).error_code == 0
    registry.start()
    # How soon is in test_outage.py.
    wait_until(lambda: client.produce("t", make_batch([b"x"]), acks=1).error_code == 0, "the lease to go on")
    store = observer(stack, registry.connect)
    assert store.exists(znodes.broker_path(1)).result(PATIENCE_S) == before
    assert store.exists(znodes.state_path("t", 0)).result(PATIENCE_S) == state
    create(broker.bootstrap, "u")


@pytest.mark.zookeeper
def test_an_ensemble_that_loses_one_server_goes_on(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    if (reason := available()) is not None:
        pytest.skip(reason)
    ensemble = stack.enter_context(ZooKeeperEnsemble(tmp_path / "ensemble"))
    broker = stack.enter_context(
        a_broker(tmp_path, f"{ensemble.connect}/{uuid.uuid4().hex}", zookeeper_session_timeout_ms=30_000)
    )
    create(broker.bootstrap, "t")
    before = registered_as(observer(stack, broker.overrides["zookeeper.connect"]), 1)
    client = stack.enter_context(RawClient(broker.bootstrap))
    for number, server in enumerate(ensemble.servers):
        # In turn, so that one of them is the leader, and one that which the broker uses.
        server.kill()
        for when in ("before", "after"):
            for _ in range(50):
                assert [client.produce("t", make_batch([b"x"]), acks=acks).error_code for acks in (-1, 1)] == [0, 0]
            # It takes the others that serve on.
            create(broker.bootstrap, f"t{number}-{when}")
        server.start()
        server.wait_until_serving()
    assert registered_as(observer(stack, broker.overrides["zookeeper.connect"]), 1) == before
