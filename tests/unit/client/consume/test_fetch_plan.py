"""What is fetched next: bounds of memory, turns, waits; by random states of many partitions."""

from __future__ import annotations

import random
from typing import Any

from spark_kafkalite.client.config import ConsumerConfig, consumer_config
from spark_kafkalite.client.consume.fetch_plan import IDLE_S, SHORT_WAIT_MS, FetchPlan, plan_fetch
from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.network.metadata import ClusterSnapshot, Node, PartitionInfo, TopicInfo
from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.model import TopicPartition
from tests.seeds import SEED, SOAK

NOW_S = 50.0
WAIT_MS = 400


def config(**settings: Any) -> ConsumerConfig:
    return consumer_config({"bootstrap.servers": "h:1"}, {"fetch_max_wait_ms": WAIT_MS, **settings})


def snapshot(leaders: list[int], nodes: tuple[int, ...] = (1, 2)) -> ClusterSnapshot:
    """A cluster whose topic t has these leaders, under leader epochs of ten times the partition's number."""
    infos = tuple(PartitionInfo(number, leader, number * 10, (), (), ()) for number, leader in enumerate(leaders))
    return ClusterSnapshot(
        nodes={number: Node(number, "h", number) for number in nodes},
        topics={"t": TopicInfo("t", bytes(16), False, infos)},
    )


def state(number: int, position: int | None = 0, buffered_bytes: int = 0, **fields: Any) -> TopicPartitionState:
    made = TopicPartitionState(TopicPartition("t", number))
    made.move_to(position)
    made.buffered_bytes = buffered_bytes
    if buffered_bytes:
        made.buffered.append(None)  # type: ignore[arg-type]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def plan(
    states: list[TopicPartitionState], seen: ClusterSnapshot, conf: ConsumerConfig, **changed: Any
) -> FetchPlan | None:
    given = {"requested_bytes": 0, "turn": 0, "now_s": NOW_S, "fair": False, **changed}
    return plan_fetch(states, seen, 1, config=conf, **given)


def wanted(found: FetchPlan | None) -> list[int]:
    assert found is not None
    return [want.state.topic_partition.partition for want in found.wants]


def test_a_broker_is_asked_for_what_it_leads() -> None:
    found = plan([state(0, 5), state(1), state(2, 7)], snapshot([1, 2, 1]), config())
    assert found is not None
    assert [want.position[:3] for want in found.wants] == [(("t", 0), 5, 0), (("t", 2), 7, 20)]
    assert found.limits.max_wait_ms == WAIT_MS


def test_a_broker_that_leads_nothing_or_is_gone_needs_no_thread() -> None:
    assert plan([state(0)], snapshot([2]), config()) is None
    assert plan([state(0)], snapshot([-1]), config()) is None
    assert plan([state(0)], snapshot([1], nodes=(2,)), config()) is None
    assert plan([state(5)], snapshot([1]), config()) is None


def test_nothing_is_fetched_without_position_paused_failed_or_while_it_waits() -> None:
    states = [state(0, None), state(1, paused=True), state(2, error=CorruptMessage("x"))]
    states.append(state(3, retry_at_s=NOW_S + 0.25))
    found = plan(states, snapshot([1, 1, 1, 1]), config())
    assert wanted(found) == [] and found is not None
    assert found.look_again_s == 0.25


def test_everybody_comes_first_in_turn() -> None:
    states = [state(number) for number in range(3)]
    firsts = [wanted(plan(states, snapshot([1, 1, 1]), config(), turn=turn))[0] for turn in range(6)]
    assert sorted(firsts[:3]) == [0, 1, 2] and firsts[3:] == firsts[:3]


def test_who_never_reads_leaves_the_others_one_batch_each_when_it_is_fair() -> None:
    conf = config(queued_max_bytes=1_000, max_partition_fetch_bytes=400)
    states = [state(0, buffered_bytes=900), state(1, buffered_bytes=200), state(2)]
    assert wanted(plan(states, snapshot([1, 1, 1]), conf)) == []
    found = plan(states, snapshot([1, 1, 1]), conf, fair=True)
    assert wanted(found) == [2] and found is not None
    assert (found.limits.max_bytes, found.limits.max_wait_ms) == (1, SHORT_WAIT_MS)


def test_fetches_that_idle_brokers_keep_leave_room_for_one_to_every_other_broker() -> None:
    conf = config()
    for brokers in range(1, 40):
        seen = snapshot(list(range(1, brokers + 1)), nodes=tuple(range(1, brokers + 1)))
        requested = 0
        for node in range(1, brokers + 1):
            states = [state(number) for number in range(brokers)]
            found = plan_fetch(
                states, seen, node, requested_bytes=requested, turn=0, now_s=NOW_S, config=conf, fair=False
            )
            assert wanted(found) == [node - 1] and found is not None
            requested += found.limits.max_bytes
        assert requested <= conf.queued_max_bytes


def test_random_states_keep_the_bounds() -> None:
    source = random.Random(SEED)
    for _ in range(20_000 if SOAK else 1_000):
        most, queued = source.choice([1, 100, 1_000]), source.choice([1_000, 3_000, 50_000])
        conf = config(
            max_partition_fetch_bytes=most, queued_max_bytes=queued, fetch_max_bytes=source.choice([500, 9_000])
        )
        states = [
            state(
                number,
                source.choice([None, 0, 9]),
                source.choice([0, 0, most, 2 * most, queued]),
                paused=source.random() < 0.2,
                retry_at_s=source.choice([0.0, NOW_S, NOW_S + 0.5, NOW_S + 9]),
            )
            for number in range(source.randint(1, 6))
        ]
        fair, requested = source.random() < 0.5, source.choice([0, 0, 400, queued])
        seen = snapshot([source.choice([1, 1, 2, -1]) for _ in states])
        found = plan(states, seen, conf, fair=fair, requested_bytes=requested, turn=source.randrange(9))
        ours = [each for each in states if seen.leader(*each.topic_partition) == 1]
        assert (found is None) == (not ours)
        if found is None:
            continue
        share = max(1, min(most, queued // (2 * len(states)))) if fair else most
        ready = [each for each in ours if each.position is not None and not each.paused and each.retry_at_s <= NOW_S]
        hungry = [each for each in ready if each.buffered_bytes < 2 * share]
        held = requested + sum(each.buffered_bytes for each in states)
        asked = [want.state for want in found.wants]
        if held < queued:
            assert sorted(asked, key=states.index) == hungry
            assert not asked or held + found.limits.max_bytes <= queued
        elif fair:
            assert asked == [each for each in hungry if not each.buffered][:1]
        else:
            assert asked == []
        assert found.limits.max_bytes <= conf.fetch_max_bytes
        assert all(
            want.position.max_bytes == share and want.generation == want.state.generation for want in found.wants
        )
        left_out = any(each.retry_at_s > NOW_S or each not in hungry for each in ready) or any(
            each.retry_at_s > NOW_S and each.position is not None and not each.paused for each in ours
        )
        if asked:
            assert found.limits.max_wait_ms == (SHORT_WAIT_MS if left_out or held >= queued else WAIT_MS)
        assert 0 < found.look_again_s <= IDLE_S
