"""Of the partitions of a cluster only those count against a broker's descriptors that it hosts itself."""

from __future__ import annotations

import asyncio
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.requests.topics import TopicAdmin
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.errors import KafkaError, PolicyViolation
from spark_kafkalite.model import BrokerEpoch, BrokerId
from spark_kafkalite.net.descriptors import Descriptors
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState, TopicState, diff
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.controller.controller import Extension, TopicSpec
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices
from tests.unit.slice_clock import SliceClock

ME = 1
ROOM = 64


class Admin:
    """Topics of a cluster of three, whose broker 1 has room for 64 partitions."""

    def __init__(self, hosted: int = 0, elsewhere: int = 0) -> None:
        view = ClusterView()
        brokers = {number: BrokerInfo(BrokerId(number), "h", 1, None, BrokerEpoch(1)) for number in (1, 2, 3)}
        replicas = [(BrokerId(ME), BrokerId(2))] * hosted + [(BrokerId(2), BrokerId(3))] * elsewhere
        states = {number: PartitionState(each, leader=BrokerId(2)) for number, each in enumerate(replicas)}
        topics = {"there": TopicState(b"t" * 16, states, {})} if states else {}
        new = ClusterState(brokers=MappingProxyType(brokers), topics=MappingProxyType(topics))
        view.publish(new, diff(view.state, new))
        self.planned: list[Any] = []
        membership: Any = SimpleNamespace(session=SimpleNamespace(controller=self))
        unused: Any = SimpleNamespace(check_room=lambda: None)
        self.topics = TopicAdmin(
            DynamicConfig(BrokerConfig.from_properties({"broker.id": ME})),
            unused,
            membership,
            view,
            unused,
            Slices(asyncio.get_running_loop(), SliceClock()),
            _Room(),
            unused,
            connections=lambda: 0,
        )

    async def create_topics(
        self, topics: list[TopicSpec], *, timeout_s: float, validate_only: bool
    ) -> dict[str, TopicAssignment]:
        self.planned += topics
        return {topic.name: TopicAssignment(b"n" * 16, {}) for topic in topics}

    async def extend_topics(
        self, topics: list[Extension], *, timeout_s: float, validate_only: bool
    ) -> dict[str, TopicAssignment]:
        self.planned += topics
        return {topic.name: TopicAssignment(b"n" * 16, {}) for topic in topics}

    async def create(self, *topics: TopicSpec) -> dict[str, Any]:
        return dict(await self.topics.create(topics, timeout_s=1, validate_only=True))


class _Room(Descriptors):
    def __init__(self) -> None:
        super().__init__(4096)
        self._rest, self._always_for_connections = ROOM, 0


def is_refused(outcome: object) -> bool:
    return isinstance(outcome, PolicyViolation)


@pytest.mark.parametrize(
    ("partitions", "replicas", "refused"),
    [(64, 3, False), (65, 3, True), (96, 2, False), (99, 2, True), (192, 1, False), (195, 1, True)],
)
def test_a_new_topic_counts_with_the_share_that_a_broker_gets(partitions: int, replicas: int, refused: bool) -> None:
    async def test() -> None:
        outcome = (await Admin().create(TopicSpec("new", partitions, replicas)))["new"]
        assert is_refused(outcome) == refused
        assert refused or not isinstance(outcome, KafkaError)

    asyncio.run(test())


def test_partitions_of_others_take_no_room() -> None:
    async def test() -> None:
        assert not is_refused((await Admin(hosted=60, elsewhere=5000).create(TopicSpec("new", 12, 1)))["new"])
        assert is_refused((await Admin(hosted=60, elsewhere=5000).create(TopicSpec("new", 15, 1)))["new"])

    asyncio.run(test())


def test_an_assignment_counts_as_it_is() -> None:
    async def test() -> None:
        mine = {number: [ME] if number < 65 else [2] for number in range(100)}
        fits = {number: [ME] if number < 64 else [2] for number in range(100)}
        outcomes = await Admin().create(TopicSpec("a", assignment=mine), TopicSpec("b", assignment=fits))
        assert is_refused(outcomes["a"]) and not is_refused(outcomes["b"])

    asyncio.run(test())


def test_an_extension_counts_what_it_adds() -> None:
    async def test() -> None:
        for extension, refused in (
            (Extension("there", 60 + 6), False),
            (Extension("there", 60 + 7), True),
            (Extension("there", 60 + 10, [[2]] * 6 + [[ME]] * 4), False),
            (Extension("there", 60 + 10, [[2]] * 5 + [[ME]] * 5), True),
        ):
            admin = Admin(hosted=60)
            outcome = (await admin.topics.extend([extension], timeout_s=1, validate_only=True))["there"]
            assert is_refused(outcome) == refused, extension

    asyncio.run(test())


def test_what_is_being_made_is_counted_until_the_registry_names_it() -> None:
    async def test() -> None:
        admin = Admin()
        under_way = asyncio.Event()
        go_on = asyncio.Event()
        create = admin.create_topics

        async def slow(topics: list[TopicSpec], **settings: Any) -> dict[str, TopicAssignment]:
            if topics:
                under_way.set()
                await go_on.wait()
            return await create(topics, **settings)

        admin.create_topics = slow  # type: ignore[method-assign]
        first = asyncio.ensure_future(admin.create(TopicSpec("first", 60, 3)))
        await under_way.wait()
        assert is_refused((await admin.create(TopicSpec("second", 5, 3)))["second"])
        go_on.set()
        assert not is_refused((await first)["first"])
        assert not is_refused((await admin.create(TopicSpec("second", 5, 3)))["second"])

    asyncio.run(test())
