"""A topic is created when its leaders are registered; that one of them does not answer delays the answer, no more."""

from __future__ import annotations

import asyncio
from types import MappingProxyType, SimpleNamespace
from typing import Any

from spark_kafkalite.broker.requests.topics import TopicAdmin
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.errors import BrokerUnreachable, RequestTimedOut
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState, TopicState, diff
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.controller.controller import TopicSpec
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.lab.manual_loop import ManualLoop
from tests.lab.partition_states import live_broker
from tests.unit.slice_clock import SliceClock

TOPIC_ID = b"n" * 16


class Peers:
    """Other brokers that are registered. They say that they lead the topic's first partitions, so many; with none they
    are frozen, and say nothing."""

    def __init__(self, serving: int) -> None:
        self.asked: list[int] = []
        self._serving = serving

    async def ask(self, broker: Any, message: object, version: int, *, timeout_s: float) -> MetadataResponse:
        self.asked.append(broker.broker_id)
        if not self._serving:
            raise BrokerUnreachable("no answer")
        led = [
            MetadataResponsePartition(partition_index=number, leader_id=broker.broker_id)
            for number in range(self._serving)
        ]
        return MetadataResponse(topics=[MetadataResponseTopic(name="new", partitions=led)])


def outcome_of(
    *, is_registered: bool, leader: int = 2, timeout_s: float = 30.0, partitions: int = 1, serving: int = 0
) -> tuple[Any, float, list[int]]:
    """Create a topic that broker 2 is to lead, or this one, 1, which leads only the first ``serving`` partitions yet;
    return the outcome, the seconds that it took, and which brokers were asked."""
    loop = ManualLoop(ManualClock())
    view, peers = ClusterView(), Peers(serving)

    class Controller:
        async def create_topics(
            self, topics: list[TopicSpec], *, timeout_s: float, validate_only: bool
        ) -> dict[str, TopicAssignment]:
            state = PartitionState((BrokerId(leader),), leader=BrokerId(leader), leader_epoch=0)
            live = {number: live_broker(number) for number in ((1, 2) if is_registered else (1,))}
            states = dict.fromkeys(range(partitions), state)
            new = ClusterState("id", live, MappingProxyType({"new": TopicState(TOPIC_ID, states, {})}))
            view.publish(new, diff(view.state, new))
            return {"new": TopicAssignment(TOPIC_ID, dict.fromkeys(states, (BrokerId(leader),)))}

    class Hosted:
        def check_room(self) -> None: ...

        def has_leader(self, topic_partition: Any, topic_id: bytes) -> bool:
            return is_registered

        def serves(self, topic_partition: Any, topic_id: bytes) -> bool:
            return is_registered and (leader == 2 or topic_partition.partition < serving)

        async def wait_until(self, condition: Any, timeout_s: float) -> bool:
            if not condition():
                await asyncio.sleep(timeout_s)
            return bool(condition())

    membership: Any = SimpleNamespace(session=SimpleNamespace(controller=Controller()))
    anything: Any = SimpleNamespace(room_for_partitions=lambda _: 1000)
    topics = TopicAdmin(
        DynamicConfig(BrokerConfig.from_properties({"broker.id": 1})),
        anything,
        membership,
        view,
        Hosted(),  # type: ignore[arg-type]
        Slices(loop, SliceClock()),
        anything,
        peers,  # type: ignore[arg-type]
        connections=lambda: 0,
    )
    try:
        began_s = loop.time()
        found = loop.run_until_complete(topics.create([TopicSpec("new")], timeout_s=timeout_s))
        return found["new"], loop.time() - began_s, peers.asked
    finally:
        loop.close()


def test_a_leader_that_does_not_answer_delays_a_creation_by_seconds_and_not_by_its_whole_time() -> None:
    outcome, seconds, asked = outcome_of(is_registered=True)
    assert isinstance(outcome, TopicAssignment)
    assert 3.0 < seconds <= 5.0
    assert set(asked) == {2}


def test_a_topic_whose_leader_is_not_registered_is_not_ready_in_time() -> None:
    outcome, _, asked = outcome_of(is_registered=False)
    assert isinstance(outcome, RequestTimedOut)
    assert not asked


def test_logs_that_are_still_made_delay_a_creation_by_seconds_and_not_by_its_whole_time() -> None:
    outcome, seconds, asked = outcome_of(is_registered=True, leader=1)
    assert isinstance(outcome, TopicAssignment)
    assert 3.0 < seconds <= 5.0
    assert not asked
    outcome, seconds, _ = outcome_of(is_registered=True, leader=1, timeout_s=2.0)
    assert isinstance(outcome, TopicAssignment)
    assert seconds <= 2.0


def test_the_logs_of_the_later_partitions_of_a_wide_topic_do_not_delay_its_creation() -> None:
    for leader in (1, 2):
        _, seconds, _ = outcome_of(is_registered=True, leader=leader, partitions=1001, serving=999)
        assert 3.0 < seconds <= 5.0
        outcome, seconds, _ = outcome_of(is_registered=True, leader=leader, partitions=1001, serving=1000)
        assert isinstance(outcome, TopicAssignment)
        assert not seconds
