import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.errors import InconsistentClusterId, RegistryError
from spark_kafkalite.model import BrokerId, Incarnation
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import registration
from spark_kafkalite.registry.cluster.producer_ids import ProducerIdManager
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK, PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock
from spark_kafkalite.registry.store import Exists, Request, SessionState, Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.patience import PATIENCE_S, wait_until_async
from tests.unit.registry.virtual_time import follow, run


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedRegistry]:
    with EmbeddedRegistry(tmp_path) as registry:
        yield registry


def a_broker(host: str = "h", port: int = 1) -> BrokerRegistration:
    return BrokerRegistration(BrokerId(1), host, port)


def test_base_nodes_can_be_made_again(registry: EmbeddedRegistry) -> None:
    store = EmbeddedStore(registry)
    for _ in range(2):
        asyncio.run(registration.create_base_nodes(store))
    for path in znodes.PERSISTENT_PATHS:
        assert store.exists(path).result() is not None


def test_the_cluster_id_is_made_once(registry: EmbeddedRegistry) -> None:
    first, second = EmbeddedStore(registry), EmbeddedStore(registry)
    cluster_id = asyncio.run(registration.cluster_id(first))
    assert len(cluster_id) == 22
    assert asyncio.run(registration.cluster_id(second)) == cluster_id
    assert asyncio.run(registration.cluster_id(second, cluster_id)) == cluster_id


def test_another_clusters_data_is_refused(registry: EmbeddedRegistry) -> None:
    found = asyncio.run(registration.cluster_id(EmbeddedStore(registry)))
    other = znodes.uuid_text(znodes.new_uuid())
    with pytest.raises(InconsistentClusterId, match=f"{other}.*{found}"):
        asyncio.run(registration.cluster_id(EmbeddedStore(registry), other))


def test_a_new_registry_takes_the_datas_id(registry: EmbeddedRegistry) -> None:
    kept = znodes.uuid_text(znodes.new_uuid())
    assert asyncio.run(registration.cluster_id(EmbeddedStore(registry), kept)) == kept


def test_the_broker_epoch_is_the_creation_zxid_and_grows(registry: EmbeddedRegistry) -> None:
    first = EmbeddedStore(registry)
    epoch = asyncio.run(registration.register_broker(first, a_broker())).czxid
    assert first.exists("/brokers/ids/1").result().czxid == epoch
    # Registering twice in one session is the same registration.
    assert asyncio.run(registration.register_broker(first, a_broker())).czxid == epoch
    asyncio.run(registration.deregister_broker(first, 1))
    assert asyncio.run(registration.register_broker(EmbeddedStore(registry), a_broker())).czxid > epoch


def test_a_duplicate_id_is_an_error_that_names_the_holder(
    registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "EXPIRY_MARGIN_S", 0.0)
    holder, second = EmbeddedStore(registry), EmbeddedStore(registry, session_timeout_ms=50)
    epoch = asyncio.run(registration.register_broker(holder, a_broker("first", 9092))).czxid

    async def come_second() -> None:
        follow(registry)
        await registration.register_broker(second, a_broker("second", 9093))

    with pytest.raises(registration.DuplicateBrokerId, match=r"broker\.id=1 is taken by the broker at first:9092"):
        run(come_second())
    # The holder's node is as it was: nobody deletes another's.
    assert holder.exists("/brokers/ids/1").result().czxid == epoch
    asyncio.run(registration.deregister_broker(second, 1))
    assert holder.exists("/brokers/ids/1").result() is not None


def test_an_old_incarnations_node_is_waited_for(registry: EmbeddedRegistry) -> None:
    old, new = EmbeddedStore(registry), EmbeddedStore(registry)
    asyncio.run(registration.register_broker(old, a_broker()))

    async def come_back() -> int:
        follow(registry)
        waiting = asyncio.ensure_future(registration.register_broker(new, a_broker()))
        done, _ = await asyncio.wait([waiting], timeout=5.0)
        assert not done
        registry.expire(old.session_id).result()
        return (await waiting).czxid

    epoch = run(come_back())
    stat = new.exists("/brokers/ids/1").result()
    assert (stat.czxid, stat.ephemeral_owner) == (epoch, new.session_id)


def test_the_node_of_a_former_session_of_this_process_is_replaced(registry: EmbeddedRegistry) -> None:
    old, new = EmbeddedStore(registry), EmbeddedStore(registry)
    first = asyncio.run(registration.register_broker(old, a_broker()))
    second = asyncio.run(registration.register_broker(new, a_broker(), {old.session_id, new.session_id}))
    assert second.czxid > first.czxid
    assert new.exists("/brokers/ids/1").result().ephemeral_owner == new.session_id


def test_the_holder_of_an_id_has_as_long_as_its_own_session_lasts(
    registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "EXPIRY_MARGIN_S", 0.0)
    old, new = EmbeddedStore(registry, session_timeout_ms=60_000), EmbeddedStore(registry, session_timeout_ms=50)
    other = replace(a_broker("h2"), incarnation=Incarnation(2))

    async def come_back() -> None:
        follow(registry)
        await registration.register_broker(old, replace(a_broker(), incarnation=Incarnation(1)))
        waiting = asyncio.ensure_future(registration.register_broker(new, other))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        registry.expire(old.session_id).result()
        await waiting

    run(come_back())
    assert new.exists("/brokers/ids/1").result().ephemeral_owner == new.session_id


class SilentStore(EmbeddedStore):
    """Hears nothing from the registry while it is told so, neither answers nor events; afterwards all of it."""

    def __init__(self, registry: EmbeddedRegistry, session_timeout_ms: int) -> None:
        super().__init__(registry, session_timeout_ms=session_timeout_ms)
        self.is_silent = False
        self.watches = 0
        self._held: list[Callable[[], object]] = []
        self._lock = threading.RLock()

    def ask(self, request: Request) -> Future[Any]:
        if isinstance(request, Exists) and (watch := request.watch) is not None:
            self.watches += 1
            request = Exists(request.path, lambda event: self._hear(lambda: watch(event)))
        answer, heard = super().ask(request), Future[Any]()

        def hear() -> None:
            error = answer.exception()
            heard.set_result(answer.result()) if error is None else heard.set_exception(error)

        answer.add_done_callback(lambda _: self._hear(hear))
        return heard

    def _hear(self, hear: Callable[[], object]) -> None:
        self._held.append(hear)
        self.listen()

    def listen(self) -> None:
        with self._lock:
            while self._held and not self.is_silent:
                self._held.pop(0)()

    async def fall_silent_once_it_waits(self) -> None:
        await wait_until_async(lambda: self.watches, "it watches the holder's node", poll_s=0.001)
        self.is_silent = True


@pytest.mark.parametrize("is_noticed", [True, False])
def test_time_in_which_the_registry_is_not_heard_does_not_count_against_a_holder_of_the_id(
    registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch, is_noticed: bool
) -> None:
    monkeypatch.setattr(registration, "EXPIRY_MARGIN_S", 0.0)
    old, new = EmbeddedStore(registry), SilentStore(registry, session_timeout_ms=1000)

    async def come_back() -> None:
        follow(registry)
        await registration.register_broker(old, a_broker())
        waiting = asyncio.ensure_future(registration.register_broker(new, a_broker()))
        await new.fall_silent_once_it_waits()
        if is_noticed:
            new.listeners.report(SessionState.SUSPENDED)
        done, _ = await asyncio.wait([waiting], timeout=1.5)
        assert not done
        new.is_silent = False
        if is_noticed:
            new.listeners.report(SessionState.CONNECTED)
        new.listen()
        # The holder has its whole time again.
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        with pytest.raises(registration.DuplicateBrokerId):
            await waiting

    run(come_back())


def test_a_holder_that_has_gone_unheard_is_no_duplicate(
    registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "EXPIRY_MARGIN_S", 0.0)
    old, new = EmbeddedStore(registry), SilentStore(registry, session_timeout_ms=500)

    async def come_back() -> int:
        follow(registry)
        await registration.register_broker(old, a_broker())
        waiting = asyncio.ensure_future(registration.register_broker(new, a_broker()))
        await new.fall_silent_once_it_waits()
        registry.expire(old.session_id).result()
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert not done
        new.is_silent = False
        new.listen()
        return (await waiting).czxid

    epoch = run(come_back())
    stat = new.exists("/brokers/ids/1").result()
    assert (stat.czxid, stat.ephemeral_owner) == (epoch, new.session_id)


def supply_of(store: Store, number: int = 1, *, is_first: bool = True) -> ProducerIdManager:
    return ProducerIdManager(store, BrokerId(number), ManualClock(), lambda: is_first)


@pytest.mark.parametrize("left", [None, b"no block", b'{"version":1,"broker":1,"block_start":"-5","block_end":"5"}'])
def test_producer_ids_are_not_given_again_when_their_node_is_lost(
    registry: EmbeddedRegistry, caplog: pytest.LogCaptureFixture, left: bytes | None
) -> None:
    """A broker would take a new producer's records for those of the older one with its id."""

    async def given(broker: int) -> list[int]:
        follow(registry)
        supply = supply_of(store, broker, is_first=False)
        return [await supply.next_id() for _ in range(PRODUCER_ID_BLOCK_SIZE)]

    store = EmbeddedStore(registry)
    store.create(PRODUCER_ID_BLOCK, ProducerIdBlock.from_number(5_000_000, BrokerId(1)).encode()).result()
    before = run(given(1))
    if left is None:
        store.delete(PRODUCER_ID_BLOCK).result()
    else:
        store.set(PRODUCER_ID_BLOCK, left).result()
    after = run(given(2)) + run(given(1))
    assert min(after) > max(before)
    assert len(set(after)) == 2 * PRODUCER_ID_BLOCK_SIZE
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert PRODUCER_ID_BLOCK in line and f"from {min(after)} on" in line


def test_producer_ids_are_never_given_twice(registry: EmbeddedRegistry) -> None:
    """Many are asked for at once where one block ends."""
    before, at_once = PRODUCER_ID_BLOCK_SIZE - 50, 100

    async def many(supply: ProducerIdManager) -> list[int]:
        follow(registry)
        given = [await supply.next_id() for _ in range(before)]
        return given + list(await asyncio.gather(*(supply.next_id() for _ in range(at_once))))

    store = EmbeddedStore(registry)
    first = run(many(supply_of(store)))
    second = run(many(supply_of(store, 2)))
    assert len(set(first + second)) == 2 * (before + at_once)
    assert second[0] == 2 * PRODUCER_ID_BLOCK_SIZE


def test_producer_ids_are_there_while_the_registry_is_away(registry: EmbeddedRegistry) -> None:
    async def work() -> list[int]:
        follow(registry)
        store = SilentStore(registry, session_timeout_ms=1000)
        supply = supply_of(store)
        supply.take_ahead()
        await taken_ahead(supply)
        given = [await supply.next_id() for _ in range(950)]
        # From a tenth before its end on the next block is there, too.
        await taken_ahead(supply)
        store.is_silent = True
        async with asyncio.timeout(PATIENCE_S):
            given += [await supply.next_id() for _ in range(1050)]
        supply.close()
        return given

    async def taken_ahead(supply: ProducerIdManager) -> None:
        await wait_until_async(lambda: supply._taking_ahead is None, "the next block is taken ahead", poll_s=0.001)

    assert run(work()) == list(range(2000))


def test_a_block_that_could_not_be_taken_ahead_is_taken_at_need(registry: EmbeddedRegistry) -> None:
    async def work() -> list[int]:
        follow(registry)
        store = EmbeddedStore(registry)
        supply = supply_of(store)
        await asyncio.wrap_future(
            store.create(PRODUCER_ID_BLOCK, ProducerIdBlock.from_number(2**63 - 1000, BrokerId(1)).encode())
        )
        supply.take_ahead()
        await asyncio.sleep(0)
        assert supply._taking_ahead is not None
        await asyncio.wait([supply._taking_ahead])
        await asyncio.wrap_future(store.delete(PRODUCER_ID_BLOCK))
        return [await supply.next_id() for _ in range(3)]

    assert run(work()) == [0, 1, 2]


def test_a_new_registry_is_refused_by_who_has_logs(registry: EmbeddedRegistry) -> None:
    kept, store = znodes.uuid_text(znodes.new_uuid()), EmbeddedStore(registry)
    with pytest.raises(RegistryError, match=f"no /cluster/id.*logs of cluster {kept}.*kafkalite registry --data"):
        asyncio.run(registration.cluster_id(store, kept, holds_logs=True))
    # It is left as it was found.
    assert store.exists("/cluster").result() is None
    found = asyncio.run(registration.cluster_id(store))
    assert asyncio.run(registration.cluster_id(store, found, holds_logs=True)) == found
