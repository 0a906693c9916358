"""Membership over the embedded registry in this process: no broker, no network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_kafkalite.client.registry_consumer.member import RegistryMember
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.errors import KafkaliteError, LeaderNotAvailable, RebalanceFailed, RegistryError
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry import consumer_nodes, znodes
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration, SubscriptionPattern
from spark_kafkalite.registry.store import ConnectionLoss, SessionState, Stat, Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration, TopicAssignment
from tests.patience import PATIENCE_S, wait_until
from tests.unit.client.registry_consumer.recording_store import RecordingStore

TIMEOUT_S = PATIENCE_S
WHITE = SubscriptionPattern.WHITE_LIST


class Reading:
    """Who reads: remembers what it was told."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.owned: dict[TopicPartition, str] = {}
        self.told: list[str] = []
        self.until_s = 0.0
        self.refusals: list[KafkaliteError] = []
        self.on_release: Callable[[set[TopicPartition]], None] = lambda partitions: None

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self.changed.notify_all()

    def joined(self) -> None:
        with self.changed:
            self._tell("joined")

    def acquire(self, threads: Mapping[TopicPartition, str]) -> None:
        with self.changed:
            if self.refusals:
                raise self.refusals.pop()
            self.owned.update(threads)
            self._tell("acquire")

    def release(self, partitions: set[TopicPartition]) -> None:
        self.on_release(partitions)
        with self.changed:
            for each in partitions:
                self.owned.pop(each, None)
            self._tell("release")

    def lost(self) -> None:
        with self.changed:
            self.owned.clear()
            self._tell("lost")

    def leased(self, until_s: float) -> None:
        with self.changed:
            self.until_s = until_s
            self._tell("leased")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT_S), self.told

    def numbers(self) -> list[int]:
        return sorted(each.partition for each in self.owned)


class Group:
    """Members of one group over one registry."""

    def __init__(self, directory: Path) -> None:
        self.registry = EmbeddedRegistry(directory)
        self.admin = EmbeddedStore(self.registry)
        self.members: list[RegistryMember] = []
        self.stores: dict[str, list[RecordingStore]] = {}
        for path in znodes.PERSISTENT_PATHS:
            self.admin.create(path, make_parents=True).result(TIMEOUT_S)

    def set_topic(self, topic: str, partitions: int) -> None:
        data = TopicAssignment(bytes(16), {number: (BrokerId(1),) for number in range(partitions)}).encode()
        path = znodes.topic_path(topic)
        if self.admin.exists(path).result(TIMEOUT_S) is None:
            self.admin.create(path, data).result(TIMEOUT_S)
        else:
            self.admin.set(path, data).result(TIMEOUT_S)

    def add_broker(self, number: int) -> None:
        registration = BrokerRegistration(BrokerId(number), "h", 1).encode()
        self.admin.create(znodes.broker_path(number), registration, ephemeral=True).result(TIMEOUT_S)

    def own(self, topic: str, number: int, thread: str = "other-0") -> EmbeddedStore:
        """Have somebody else own a partition; returns that session."""
        store = EmbeddedStore(self.registry)
        path = consumer_nodes.owner_path("g", topic, number)
        store.create(path, thread.encode(), ephemeral=True, make_parents=True).result(TIMEOUT_S)
        return store

    def member(
        self,
        consumer_id: str,
        reading: Reading,
        registration: ConsumerRegistration | None = None,
        *,
        max_retries: int = 100,
        backoff_ms: int = 100,
        prepare: Callable[[RecordingStore], None] = lambda store: None,
    ) -> RegistryMember:
        def open_store() -> Store:
            store = RecordingStore(EmbeddedStore(self.registry))
            prepare(store)
            self.stores.setdefault(consumer_id, []).append(store)
            return store

        member = RegistryMember(
            RegistryLink(),
            open_store,
            "g",
            consumer_id,
            registration or ConsumerRegistration({"t": 1}),
            reading,
            max_retries=max_retries,
            backoff_ms=backoff_ms,
        )
        self.members.append(member)
        return member

    def start(self, consumer_id: str, registration: ConsumerRegistration | None = None) -> Reading:
        reading = Reading()
        self.member(consumer_id, reading, registration).start()
        return reading

    def expire(self, consumer_id: str) -> None:
        self.registry.expire(self.stores[consumer_id][-1].session_id).result(TIMEOUT_S)

    def owners(self, topic: str = "t") -> dict[int, str]:
        directory = consumer_nodes.topic_owners_path("g", topic)
        if self.admin.exists(directory).result(TIMEOUT_S) is None:
            return {}
        numbers = self.admin.children(directory).result(TIMEOUT_S)
        return {int(each): self.admin.get(f"{directory}/{each}").result(TIMEOUT_S)[0].decode() for each in numbers}

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.registry.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    made.set_topic("t", 4)
    yield made
    made.close()


def steps(store: RecordingStore) -> list[str]:
    """Name the steps of the start in the order in which they were taken."""
    names = {
        ("create", "/consumers/g/ids/c"): "register",
        ("children", "/consumers/g/ids"): "watch consumers",
        ("children", "/brokers/ids"): "watch brokers",
        ("children", "/brokers/topics"): "watch topics",
    }
    taken = []
    for method, path, watches in store.calls:
        name = names.get((method, path))
        if name is not None and (watches or method == "create"):
            taken.append(name)
        elif method == "multi":
            taken.append("claim")
    return taken


def test_a_consumer_starts_in_the_order_of_the_document(group: Group) -> None:
    group.start("c")
    (store,) = group.stores["c"]
    first_claim = steps(store).index("claim")
    assert steps(store)[:3] == ["register", "watch consumers", "watch brokers"]
    assert "watch topics" not in steps(store)
    # What rebalancing reads comes after all of them.
    assert [method for method, _, _ in store.calls].index("get") > 2
    assert first_claim > 2


def test_with_a_filter_topics_are_watched_before_the_rebalance(group: Group) -> None:
    group.start("c", ConsumerRegistration({"t.*": 1}, WHITE))
    (store,) = group.stores["c"]
    assert steps(store)[:4] == ["register", "watch consumers", "watch brokers", "watch topics"]
    assert [method for method, _, _ in store.calls].index("get") > 3


def test_registration_and_owners_are_ephemeral_and_name_the_thread(group: Group) -> None:
    reading = group.start("c", ConsumerRegistration({"t": 2}))
    assert group.owners() == {0: "c-0", 1: "c-0", 2: "c-1", 3: "c-1"}
    assert reading.owned == {TopicPartition("t", n): f"c-{n // 2}" for n in range(4)}
    session = group.stores["c"][0].session_id
    for path in ("/consumers/g/ids/c", "/consumers/g/owners/t/3"):
        stat = group.admin.exists(path).result(TIMEOUT_S)
        assert stat is not None and stat.ephemeral_owner == session


def test_members_share_and_take_over(group: Group) -> None:
    first = group.start("a")
    second = group.start("b")
    first.wait_for(lambda: first.numbers() == [0, 1])
    second.wait_for(lambda: second.numbers() == [2, 3])
    assert group.owners() == {0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0"}
    group.members[0].close()
    second.wait_for(lambda: second.numbers() == [0, 1, 2, 3])
    assert set(group.owners().values()) == {"b-0"}
    assert group.admin.children("/consumers/g/ids").result(TIMEOUT_S) == ["b"]


def test_partitions_that_stay_are_not_touched(group: Group) -> None:
    reading = group.start("a")
    before = group.admin.exists("/consumers/g/owners/t/0").result(TIMEOUT_S)
    group.start("b")
    reading.wait_for(lambda: reading.numbers() == [0, 1])
    assert group.admin.exists("/consumers/g/owners/t/0").result(TIMEOUT_S) == before


def test_what_was_read_is_committed_before_the_owner_node_goes(group: Group) -> None:
    reading = group.start("a")
    seen: list[dict[int, str]] = []
    reading.on_release = lambda partitions: seen.append(group.owners())
    group.start("b")
    reading.wait_for(lambda: reading.numbers() == [0, 1])
    assert seen[0] == dict.fromkeys(range(4), "a-0")


def test_a_broker_that_comes_or_goes_triggers_a_rebalance(group: Group) -> None:
    group.start("c")
    member = group.members[0]
    rebalances = member.rebalances
    group.add_broker(1)
    wait_until(lambda: member.rebalances > rebalances, "a rebalance")
    rebalances = member.rebalances
    group.admin.delete("/brokers/ids/1").result(TIMEOUT_S)
    wait_until(lambda: member.rebalances > rebalances, "a rebalance")


def test_added_partitions_are_taken(group: Group) -> None:
    reading = group.start("c")
    group.set_topic("t", 6)
    reading.wait_for(lambda: reading.numbers() == [0, 1, 2, 3, 4, 5])


def test_a_topic_that_comes_later_is_taken_by_name_and_by_filter(group: Group) -> None:
    named = group.start("n", ConsumerRegistration({"later": 1}))
    assert named.owned == {}
    group.set_topic("later", 1)
    named.wait_for(lambda: list(named.owned) == [("later", 0)])
    filtered = group.start("f", ConsumerRegistration({"new.*": 2}, WHITE))
    assert filtered.owned == {}
    group.set_topic("new-1", 3)
    filtered.wait_for(lambda: len(filtered.owned) == 3)
    assert sorted(filtered.owned.values()) == ["f-0", "f-0", "f-1"]
    assert list(named.owned) == [("later", 0)]


def test_without_any_broker_topic_nodes_are_waited_for(tmp_path: Path) -> None:
    made = Group(tmp_path)
    for path in (znodes.TOPICS, znodes.BROKER_IDS):
        made.admin.delete(path).result(TIMEOUT_S)
    try:
        reading = made.start("c", ConsumerRegistration({".*": 1}, WHITE))
        made.admin.create(znodes.TOPICS).result(TIMEOUT_S)
        made.set_topic("t", 1)
        reading.wait_for(lambda: reading.numbers() == [0])
    finally:
        made.close()


def test_on_conflict_everything_is_released_until_the_owner_goes(group: Group) -> None:
    reading = Reading()
    other = group.own("t", 2)
    # Backoff is longer than the test: it is the owner's going that ends the wait.
    member = group.member("c", reading, max_retries=1000, backoff_ms=60_000)
    starting = threading.Thread(target=member.start)
    starting.start()
    reading.wait_for(lambda: "release" in reading.told)
    assert group.owners() == {2: "other-0"}
    assert reading.owned == {}
    other.close()
    starting.join(TIMEOUT_S)
    assert not starting.is_alive()
    assert group.owners() == dict.fromkeys(range(4), "c-0")


def test_retries_come_to_an_end(group: Group) -> None:
    group.own("t", 0)
    member = group.member("c", Reading(), max_retries=2, backoff_ms=50)
    with pytest.raises(RebalanceFailed, match=r"rebalance\.max\.retries=2 .*/consumers/g/owners/t/0"):
        member.start()


def test_a_running_member_goes_on_trying(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading()
    group.set_topic("u", 1)
    member = group.member("c", reading, ConsumerRegistration({"t": 1, "u": 1}), max_retries=1, backoff_ms=20)
    member.start()
    blocker = group.own("t", 4)
    group.set_topic("t", 5)
    reading.wait_for(lambda: reading.owned == {})
    wait_until(lambda: caplog.text.count("keeps trying") > 1, "two tries")
    blocker.close()
    reading.wait_for(lambda: len(reading.owned) == 6)


def test_an_expired_session_stops_reading_at_once_and_joins_again(group: Group) -> None:
    first = group.start("a")
    second = group.start("b")
    second.wait_for(lambda: second.numbers() == [2, 3])
    group.expire("a")
    first.wait_for(lambda: "lost" in first.told)
    first.wait_for(lambda: first.told.count("joined") == 2 and first.numbers() == [0, 1])
    second.wait_for(lambda: second.numbers() == [2, 3])
    # What was owned is not given up in order: nothing may be committed any more.
    after = first.told[first.told.index("lost") :]
    assert "release" not in after[: after.index("joined")]
    assert len(group.stores["a"]) == 2
    old, new = group.stores["a"]
    assert old.session_id != new.session_id
    stat = group.admin.exists("/consumers/g/ids/a").result(TIMEOUT_S)
    assert stat is not None and stat.ephemeral_owner == new.session_id


def test_a_consumer_id_in_use_is_an_error_that_names_it(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.start("c")
    monkeypatch.setattr("spark_kafkalite.client.registry_consumer.member._GRACE_MS", 100)
    monkeypatch.setattr(EmbeddedStore, "session_timeout_ms", 100)
    with pytest.raises(RebalanceFailed, match="consumer id 'c' is in use in group 'g'"):
        group.member("c", Reading()).start()


def test_partitions_whose_offsets_cannot_be_found_are_given_back_and_taken_again(group: Group) -> None:
    reading = Reading()
    reading.refusals = [LeaderNotAvailable("not now")]
    owners: list[dict[int, str]] = []
    reading.on_release = lambda partitions: owners.append(group.owners())
    group.member("c", reading, backoff_ms=10).start()
    assert reading.numbers() == [0, 1, 2, 3]
    assert owners == [dict.fromkeys(range(4), "c-0")]


@pytest.mark.parametrize("method", ["create", "multi", "children", "get"])
def test_a_lost_answer_leaves_nothing_behind(group: Group, method: str) -> None:
    """Each request of the kind fails once, though it was done: the member comes to own its share all the same."""
    seen: set[str] = set()

    def lose_first(called: str, path: str) -> bool:
        first = called == method and path not in seen
        seen.add(path)
        return first

    def prepare(store: RecordingStore) -> None:
        store.lost = lose_first

    reading = Reading()
    group.member("c", reading, backoff_ms=5, max_retries=2000, prepare=prepare).start()
    reading.wait_for(lambda: reading.numbers() == [0, 1, 2, 3])
    assert group.owners() == dict.fromkeys(range(4), "c-0")


def test_reading_is_leased_for_the_session_s_time_since_the_question(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedStore, "session_timeout_ms", 600)
    began_s = time.monotonic()
    reading = group.start("c")
    assert began_s < reading.until_s <= time.monotonic() + 0.6
    first_s = reading.until_s
    reading.wait_for(lambda: reading.until_s > first_s)
    assert reading.until_s <= time.monotonic() + 0.6


def test_while_the_registry_is_silent_the_lease_runs_out_and_its_return_is_looked_at(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedStore, "session_timeout_ms", 100)
    reading = group.start("c")
    store = group.stores["c"][0]
    silent: list[Future[Stat | None]] = []

    def say_nothing(path: str, watch: object = None) -> Future[Stat | None]:
        silent.append(Future())
        return silent[-1]

    monkeypatch.setattr(store, "exists", say_nothing)
    wait_until(lambda: bool(silent), "a question to the registry")
    wait_until(lambda: time.monotonic() > reading.until_s, "the end of the lease")
    assert len(silent) == 1  # one question at a time
    monkeypatch.undo()
    rebalances = group.members[0].rebalances
    for state in (SessionState.SUSPENDED, SessionState.CONNECTED):
        store.listeners.report(state)
    silent[0].set_result(None)
    reading.wait_for(lambda: reading.until_s > time.monotonic())
    wait_until(lambda: group.members[0].rebalances > rebalances, "a rebalance")
    assert reading.numbers() == [0, 1, 2, 3]


def test_a_malformed_registration_is_left_out(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group.admin.create("/consumers/g/ids/broken", b"?", make_parents=True).result(TIMEOUT_S)
    reading = group.start("c")
    assert reading.numbers() == [0, 1, 2, 3]
    assert "/consumers/g/ids/broken" in caplog.text


def test_a_start_without_a_registry_says_so(group: Group) -> None:
    def refuse() -> Store:
        raise ConnectionLoss("nobody there")

    member = RegistryMember(
        RegistryLink(), refuse, "g", "c", ConsumerRegistration({"t": 1}), Reading(), max_retries=1, backoff_ms=20
    )
    with pytest.raises(RegistryError, match="nobody there"):
        member.start()
    member.close()
