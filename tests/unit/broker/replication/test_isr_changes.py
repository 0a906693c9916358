"""What leaders find out about their ISRs reaches the registry, once, whatever becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite.broker.replication.isr_changes import IsrChanges
from spark_kafkalite.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Create, Delete, OutOfRoom, SessionExpired, SetData
from spark_kafkalite.slices import Slices
from tests.lab.partition_states import incarnations_of, live_broker, partition_state
from tests.unit.broker.replication.led_partitions import TOPIC_ID, LedPartitions
from tests.unit.slice_clock import SliceClock

LAG_S = 8.0
Leading = Callable[..., LedPartitions]


@pytest.fixture
def leading() -> Iterator[Leading]:
    """Broker 1 leads partitions with this ISR, has been registered for a while, and looks after the ISRs.

    How many leaders it checks in a slice does not depend on the host: what it finds in one shares writes.
    """
    all_changes: list[tuple[LedPartitions, IsrChanges]] = []

    def make(*isr: int, count: int = 1, **settings: object) -> LedPartitions:
        led = LedPartitions(count, *isr, **{"min_insync_replicas": 2, **settings})
        slices = Slices(led.loop, SliceClock())
        changes = IsrChanges(led.loop, slices, led.view, led.hosted, 1, led.store, LAG_S)  # type: ignore[arg-type]
        led.harness.services.isr_changes = changes
        changes.start()
        all_changes.append((led, changes))
        led.run(1.0)
        return led

    yield make
    for led, changes in all_changes:
        led.loop.run_until_complete(changes.stop())
        led.loop.close()


def test_a_dead_member_leaves_at_once(leading: Leading) -> None:
    led = leading(1, 2, 3)
    led.harness.append(led.partition(), 3)
    led.fetch(2, 3)
    assert led.partition().high_watermark == 0
    del led.live[3]
    led.publish()
    led.run()
    assert (led.node().isr, led.node().incarnations) == ((1, 2), incarnations_of(1, 2))
    assert (led.partition().high_watermark, led.registry.writes) == (3, 1)
    led.publish()
    led.run(1.0)
    assert led.registry.writes == 1


def test_a_follower_that_has_caught_up_joins_at_once(leading: Leading) -> None:
    led = leading(1, 2)
    led.fetch(3, 0)
    led.run()
    assert led.node().isr == (1, 2, 3)


def test_a_slow_member_leaves_after_the_lag(leading: Leading) -> None:
    led = leading(1, 2, 3)
    led.harness.append(led.partition(), 3)
    for _ in range(int(LAG_S)):
        led.fetch(2, 3)
        led.run(1.0)
    assert led.node().isr == (1, 2, 3)
    for _ in range(int(LAG_S)):
        led.fetch(2, 3)
        led.run(1.0)
    assert led.node().isr == (1, 2)


def test_nobody_is_slow_because_this_process_stood_still(leading: Leading) -> None:
    led = leading(1, 2, 3)
    led.harness.append(led.partition(), 3)
    led.fetch(2, 0)
    # Nothing runs for a long time; then everything is due at once, before any fetch is read.
    led.clock.advance(ms=int(LAG_S * 5000))
    led.run(0.1)
    assert led.node().isr == (1, 2, 3)
    led.fetch(2, 3)
    led.fetch(3, 3)
    led.run(LAG_S)
    assert led.node().isr == (1, 2, 3)


def test_a_leader_that_registers_first_waits_a_moment_for_the_others(leading: Leading) -> None:
    led = leading(1, 2, 3)
    before = led.live
    led.live = {}
    led.publish()
    led.run(5.0)
    led.live = {1: live_broker(1)}
    led.publish()
    led.run(0.3)
    led.live = before
    led.publish()
    led.run(2.0)
    assert (led.node().isr, led.registry.writes) == ((1, 2, 3), 0)
    led.live = {1: live_broker(1)}
    led.publish()
    led.run(0.1)
    assert (led.node().isr, led.node().eligible) == ((1,), incarnations_of(2, 3))


@pytest.mark.parametrize("fault", ["lost", "dropped", OutOfRoom("full"), SessionExpired("over")])
def test_a_write_of_unknown_outcome_is_made_known(leading: Leading, fault: str | BaseException) -> None:
    led = leading(1, 2)
    led.registry.faults.append(fault)
    led.fetch(3, 0)
    led.run(0.05)
    led.harness.append(led.partition(), 3)
    led.fetch(2, 3)
    # Broker 3 counts, because it may be a member.
    led.run(0.1)
    assert led.partition().high_watermark == 0
    led.run(1.0)
    assert led.node().isr == (1, 2, 3)
    assert led.partition().check_leader().in_sync.state.isr == (1, 2, 3)
    led.fetch(3, 3)
    assert led.partition().high_watermark == 3


def test_another_s_write_is_adopted(leading: Leading) -> None:
    led = leading(1, 2, 3)
    led.set_node(partition_state(1, 3))
    del led.live[3]
    # The news of the node has not come yet.
    led.publish_brokers()
    led.run()
    assert (led.node().isr, led.node().eligible) == ((1,), incarnations_of(3))


def test_a_state_of_another_epoch_is_left_alone(leading: Leading) -> None:
    led = leading(1, 2)
    led.set_node(partition_state(2, leader=2, epoch=1))
    led.fetch(3, 0)
    led.run(1.0)
    led.harness.append(led.partition(), 3)
    led.fetch(2, 3)
    led.run(5.0)
    # Broker 3 may be a member by another's hand: nobody is let go of.
    assert (led.node().isr, led.partition().high_watermark) == ((2,), 0)
    # With others, and alone.
    assert led.registry.writes == 2


def test_a_write_under_way_does_not_hit_a_topic_made_again(leading: Leading) -> None:
    """Its state has version 0, like the one before."""
    led = leading(1, 2)
    led.registry.write(Delete(znodes.topic_guard_path(TOPIC_ID)))
    led.registry.write(Create(znodes.topic_guard_path(b"j" * 16)))
    led.fetch(3, 0)
    led.run(0.1)
    assert (led.node().isr, led.registry.writes) == ((1, 2), 2)
    # The news come.
    led.topic_id = b"j" * 16
    led.publish()
    led.run(3.0)
    writes = led.registry.writes
    led.run(3.0)
    assert (led.node().isr, led.registry.writes) == ((1, 2), writes)


def test_a_guard_that_comes_late_is_waited_for(leading: Leading) -> None:
    led = leading(1, 2)
    led.registry.write(Delete(znodes.topic_guard_path(TOPIC_ID)))
    led.fetch(3, 0)
    led.run(1.0)
    assert led.node().isr == (1, 2)
    led.registry.write(Create(znodes.topic_guard_path(TOPIC_ID)))
    led.run(1.0)
    assert led.node().isr == (1, 2, 3)


def test_a_node_that_cannot_be_read_is_left_alone(leading: Leading, caplog: pytest.LogCaptureFixture) -> None:
    led = leading(1, 2)
    led.registry.write(SetData(znodes.state_path("t", 0), b"{"))
    led.fetch(3, 0)
    led.run(5.0)
    assert led.registry.writes == 2
    assert "t-0 keeps its in-sync replicas: registry node /brokers/topics/t/partitions/0/state" in caplog.text


def test_without_a_session_nothing_changes_and_a_change_under_way_is_taken_up_in_the_next(leading: Leading) -> None:
    led = leading(1, 2)
    led.registry.faults.append("lost")
    led.fetch(3, 0)
    led.run(0.1)
    led.has_session = False
    led.partition().fence("its broker has lost its registration")
    led.run(5.0)
    led.has_session = True
    # Nobody was elected meanwhile, and nothing is known of what was written; the old state is seen once more.
    led.partition().become_leader(partition_state(1, 2))
    led.harness.append(led.partition(), 3)
    led.fetch(2, 3)
    assert led.partition().high_watermark == 0
    led.run()
    led.fetch(3, 2)
    assert (led.partition().high_watermark, led.partition().check_leader().in_sync.state.version) == (2, 1)


def test_many_changes_do_not_hold_the_loop(leading: Leading, monkeypatch: pytest.MonkeyPatch) -> None:
    led = leading(1, 2, 3, count=300)
    passed, longest = led.loop._run_once, 0

    def count() -> int:
        return [led.node(number).isr for number in range(300)].count((1, 2))

    def a_pass() -> None:
        nonlocal longest
        before = count()
        passed()
        longest = max(longest, count() - before)

    monkeypatch.setattr(led.loop, "_run_once", a_pass)
    del led.live[3]
    led.publish()
    led.run(1.0)
    # They share writes, and few are under way: all brokers read what each of these writes.
    assert 0 < longest <= 16
    assert count() == 300
    assert led.registry.writes == 38


def test_what_is_not_written_together_is_written_alone(leading: Leading) -> None:
    led = leading(1, 2, 3, count=5)
    # Another's write, of which no news has come, and a partition that does not exist any more.
    led.set_node(partition_state(1, 3), number=1)
    led.registry.write(Delete(znodes.state_path("t", 4)))
    del led.live[3]
    led.publish_brokers()
    led.run()
    assert [led.node(number).isr for number in range(4)] == [(1, 2), (1,), (1, 2), (1, 2)]
    assert led.registry.writes == 1 + 5 + 1


@pytest.mark.parametrize("fault", ["lost", "dropped", OutOfRoom("full"), SessionExpired("over")])
def test_a_write_of_many_of_unknown_outcome_is_made_known(leading: Leading, fault: str | BaseException) -> None:
    led = leading(1, 2, 3, count=5)
    for number in range(5):
        led.harness.append(led.partition(number), 3)
        led.fetch(2, 3, number)
    led.registry.faults.append(fault)
    del led.live[3]
    led.publish()
    led.run(1.0)
    assert [led.node(number).isr for number in range(5)] == [(1, 2)] * 5
    assert [led.partition(number).high_watermark for number in range(5)] == [3] * 5
    # What has been written is found out partition by partition.
    assert led.registry.writes == (1 + 1 + 5 if fault == "lost" else 1 + 1)


def test_what_is_noted_without_a_session_is_written_together_in_the_next(leading: Leading) -> None:
    led = leading(1, 2, 3, count=80)
    led.has_session = False
    del led.live[3]
    led.publish()
    led.run(3.0)
    assert led.registry.writes == 0
    led.has_session = True
    led.run(1.0)
    assert {led.node(number).isr for number in range(80)} == {(1, 2)}
    assert led.registry.writes == 10


@pytest.mark.parametrize("count", [1, 5])
def test_an_error_of_ours_in_a_write_costs_no_change(leading: Leading, count: int) -> None:
    led = leading(1, 2, 3, count=count)
    led.registry.faults.append(RuntimeError("a bug"))
    del led.live[3]
    led.publish()
    led.run(1.0)
    assert {led.node(number).isr for number in range(count)} == {(1, 2)}


def test_acks_all_is_refused_while_too_few_are_in_sync(leading: Leading) -> None:
    led = leading(1, 2)
    leader = led.partition().check_leader()
    leader.check_acks(-1)
    del led.live[2]
    led.publish()
    led.run()
    with pytest.raises(NotEnoughReplicas, match="t-0 has 1 in-sync replica, min"):
        leader.check_acks(-1)
    leader.check_acks(1)
    # What was appended before, and is acknowledged now.
    with pytest.raises(NotEnoughReplicasAfterAppend, match="in the log, but by now it has only 1 in-sync"):
        leader.check_acknowledged(-1)
    leader.check_acknowledged(1)
