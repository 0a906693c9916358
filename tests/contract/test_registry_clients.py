"""Programs that were written for ZooKeeper use the embedded registry: kazoo's recipes, ZooKeeper's own shell."""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.protocol.states import WatchedEvent
from kazoo.recipe.watchers import ChildrenWatch, DataWatch
from kazoo.security import make_digest_acl

from spark_kafkalite.processes.zookeeper import class_path
from tests.lab.java import run_java
from tests.patience import PATIENCE_S, wait_until

SERVERS = ["served", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]
NewClient = Callable[..., KazooClient]


@pytest.fixture(params=SERVERS)
def new_client(request: pytest.FixtureRequest) -> Iterator[NewClient]:
    server = request.getfixturevalue(request.param)
    address = server if isinstance(server, str) else server.connect
    root = f"/{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        first = KazooClient(address)
        first.start()
        first.create(root)
        stack.callback(_end, first)

        def connect(**options: Any) -> KazooClient:
            client = KazooClient(address + root, timeout=20.0, **options)
            client.start()
            stack.callback(_end, client)
            return client

        yield connect


def _end(client: KazooClient) -> None:
    with contextlib.suppress(Exception):
        client.stop()
    client.close()


def test_locks_exclude_and_pass_on_when_a_holder_dies(new_client: NewClient) -> None:
    clients = [new_client() for _ in range(3)]
    locks = [client.Lock("/lock", str(number)) for number, client in enumerate(clients)]
    assert locks[0].acquire(timeout=PATIENCE_S)
    assert not locks[1].acquire(blocking=False)
    order: list[int] = []
    held = [threading.Event(), threading.Event()]

    def take(number: int) -> None:
        with locks[number]:
            order.append(number)
            held[number - 1].set()

    threads = []
    for number in (1, 2):
        threads.append(threading.Thread(target=take, args=(number,), daemon=True))
        threads[-1].start()
        wait_until(lambda number=number: len(locks[0].contenders()) == number + 1, "another contender")
    clients[0].stop()  # its session ends, and with it its claim
    for event, thread in zip(held, threads, strict=True):
        assert event.wait(PATIENCE_S)
        thread.join(PATIENCE_S)
    assert order == [1, 2]


def test_an_election_has_one_leader_and_then_the_next(new_client: NewClient) -> None:
    clients = [new_client() for _ in range(3)]
    led: list[str] = []
    leading = [threading.Event() for _ in clients]
    resign = [threading.Event() for _ in clients]

    def lead(number: int) -> None:
        led.append(str(number))
        leading[number].set()
        resign[number].wait(PATIENCE_S)

    threads = []
    for number, client in enumerate(clients):
        election = client.Election("/election", str(number))
        threads.append(threading.Thread(target=election.run, args=(lead, number), daemon=True))
        threads[-1].start()
        wait_until(
            lambda number=number, election=election: len(election.contenders()) == number + 1, "another contender"
        )
    for number in range(len(clients)):
        assert leading[number].wait(PATIENCE_S)
        assert led == [str(before) for before in range(number + 1)]
        resign[number].set()
    for thread in threads:
        thread.join(PATIENCE_S)


def test_barriers_counters_queues_and_semaphores(new_client: NewClient) -> None:
    one, two = new_client(), new_client()
    barrier = one.Barrier("/barrier")
    barrier.create()
    passed = threading.Event()
    waiter = threading.Thread(target=lambda: two.Barrier("/barrier").wait(PATIENCE_S) and passed.set(), daemon=True)
    waiter.start()
    barrier.remove()
    assert passed.wait(PATIENCE_S)
    waiter.join(PATIENCE_S)

    entered = [threading.Thread(target=client.DoubleBarrier("/double", 2).enter, daemon=True) for client in (one, two)]
    for thread in entered:
        thread.start()
    for thread in entered:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    for client in (one, two):
        counter = client.Counter("/counter")
        counter += 2
    assert one.Counter("/counter").value == 4

    queue = one.Queue("/queue")
    for number in range(5):
        queue.put(str(number).encode())
    assert [two.Queue("/queue").get() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    locking = one.LockingQueue("/locking")
    locking.put_all([b"a", b"b"])
    other = two.LockingQueue("/locking")
    assert other.get(PATIENCE_S) == b"a"
    assert other.consume()
    assert locking.get(PATIENCE_S) == b"b"

    first, second = one.Semaphore("/semaphore", max_leases=1), two.Semaphore("/semaphore", max_leases=1)
    assert first.acquire(timeout=PATIENCE_S)
    assert not second.acquire(blocking=False)
    first.release()
    assert second.acquire(timeout=PATIENCE_S)


def test_parties_have_members_while_their_sessions_last(new_client: NewClient) -> None:
    one, two = new_client(), new_client()
    for client, name in ((one, "one"), (two, "two")):
        client.Party("/party", name).join()
    assert sorted(one.Party("/party")) == ["one", "two"]
    two.stop()
    assert list(one.Party("/party")) == ["one"]


def test_watchers_see_every_state_in_order(new_client: NewClient) -> None:
    watching, writing = new_client(), new_client()
    writing.create("/w", b"0")
    data: list[bytes] = []
    children: list[list[str]] = []
    DataWatch(watching, "/w", lambda value, _: data.append(value))
    ChildrenWatch(watching, "/w", lambda names: children.append(sorted(names)))
    for number in range(1, 4):
        writing.set("/w", str(number).encode())
        wait_until(lambda number=number: data[-1] == str(number).encode(), "the new data")
        writing.create(f"/w/{number}")
        wait_until(lambda number=number: len(children[-1]) == number, "the new child")
    assert data == [b"0", b"1", b"2", b"3"]
    assert children == [[], ["1"], ["1", "2"], ["1", "2", "3"]]


def test_kazoo_finds_its_session_again_after_a_broken_connection(new_client: NewClient) -> None:
    client = new_client()
    client.create("/e", ephemeral=True)
    session = client.client_id
    events: list[WatchedEvent] = []
    client.exists("/later", watch=events.append)
    client._connection._socket.shutdown(2)
    wait_until(lambda: events, "the event")  # kazoo tells its watchers, and forgets them
    client.retry(client.create, "/later")
    assert client.client_id == session
    assert client.exists("/e").ephemeralOwner == session[0]


def test_access_is_by_digest(new_client: NewClient) -> None:
    owner, stranger = new_client(auth_data=[("digest", "user:secret")]), new_client()
    owner.create("/mine", b"x", acl=[make_digest_acl("user", "secret", all=True)])
    with pytest.raises(NoAuthError):
        stranger.get("/mine")
    stranger.add_auth("digest", "user:secret")
    assert stranger.get("/mine")[0] == b"x"
    assert owner.get_acls("/mine")[0][0].id.id.startswith("user:")


def test_transactions(new_client: NewClient) -> None:
    client = new_client()
    transaction = client.transaction()
    transaction.create("/t", b"1")
    transaction.set_data("/t", b"2", 0)
    transaction.check("/t", 1)
    assert [str(type(result).__name__) for result in transaction.commit()] == ["str", "ZnodeStat", "bool"]
    failing = client.transaction()
    failing.create("/u")
    failing.delete("/t", 7)
    assert [type(result).__name__ for result in failing.commit()] == ["RolledBackError", "BadVersionError"]
    assert client.exists("/u") is None


SHELL = """
create /s data
create -s /s/n- x
create -e /s/e y
ls /s
get -s /s
set -v 0 /s changed
get /s
stat /s
getAllChildrenNumber /s
getEphemerals /s
addWatch -m PERSISTENT /s
set /s again
addauth digest user:secret
setAcl /s auth::cdrwa
getAcl /s
delete /s
deleteall /s
sync /
version
whoami
ls /
quit
"""


@pytest.mark.zookeeper
def test_zookeepers_shell_works(served: str, zookeeper: Any) -> None:
    done = run_java(
        class_path(), "org.apache.zookeeper.ZooKeeperMain", "-server", served, input=SHELL, timeout_s=60, check=False
    )
    told = done.stdout + done.stderr
    for expected in (
        "Created /s",
        "Created /s/n-0000000000",
        "Created /s/e",
        "[e, n-0000000000]",
        "dataVersion = 0",
        "changed",
        "dataVersion = 1",
        "numChildren = 2",
        "NodeDataChanged",
        "'digest,'user:",
        "Node not empty: /s",
        "Sync is OK",
    ):
        assert expected in told, (expected, told)
    assert re.search(r"^\[zookeeper\]$|^\[\]$", told, re.MULTILINE), told
