"""A broker that stops, or whose disk fails, leaves what others can lead to them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.isr_leaving import IsrLeaving
from spark_kafkalite.errors import KafkaStorageError, NotLeaderOrFollower, OffsetNotAvailable
from spark_kafkalite.model import BrokerId, Incarnation
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import SetData
from spark_kafkalite.slices import Slices
from tests.lab.partition_states import incarnations_of, live_broker, partition_state
from tests.unit.broker.replication.led_partitions import LedPartitions
from tests.unit.broker.replication.test_partition import Waiter
from tests.unit.slice_clock import SliceClock

Leading = Callable[..., tuple[LedPartitions, IsrLeaving]]


@pytest.fixture
def leading() -> Iterator[Leading]:
    """Broker 1 leads partitions with this ISR."""
    made: list[tuple[LedPartitions, IsrLeaving]] = []

    def make(*isr: int, count: int = 1) -> tuple[LedPartitions, IsrLeaving]:
        led = LedPartitions(count, *isr, min_insync_replicas=2)
        slices = Slices(led.loop, SliceClock())
        leaving = IsrLeaving(
            led.loop,
            slices,
            led.view,
            led.hosted,
            1,
            led.store,
            keeps_eligible=True,  # type: ignore[arg-type]
        )
        led.harness.services.on_offline.append(leaving.partition_failed)
        led.harness.services.on_full = leaving.partition_full
        led.harness.services.on_damaged = leaving.partition_damaged
        led.harness.services.on_hanging = leaving.partitions_hang
        leaving.start()
        made.append((led, leaving))
        return led, leaving

    yield make
    for led, leaving in made:
        led.loop.run_until_complete(leaving.stop())
        led.loop.close()


def elect(led: LedPartitions, leader: int, number: int = 0) -> None:
    """Do what the controller does with a partition that has been given back."""
    state = led.node(number)
    elected = partition_state(*state.isr, leader=leader, epoch=state.leader_epoch + 1, eligible=state.eligible)
    led.set_node(elected, number)
    led.publish()


def test_a_stop_waits_until_others_lead(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3)
    waiter = Waiter()
    led.partition().check_leader().ack_waiters.add(waiter)
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run()
    # Clients are sent on before anybody leads.
    assert waiter.checks == 1
    with pytest.raises(NotLeaderOrFollower):
        led.partition().check_leader()
    assert (led.node().leader, led.node().leader_epoch, led.node().isr) == (-1, 0, (2, 3))
    assert not handing_over.done()
    elect(led, 2)
    led.run()
    assert handing_over.done()


def test_what_is_appended_is_acknowledged_before_it_is_given_back(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3)
    leader = led.partition().check_leader()
    led.harness.append(led.partition())
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run(0.5)
    # Followers go on to fetch; nothing more is appended for them to fetch.
    assert led.partition().leader is leader and led.node().leader == 1
    with pytest.raises(NotLeaderOrFollower):
        leader.check_acks(-1)
    led.fetch(2, 1)
    led.run(0.1)
    assert led.partition().leader is leader
    led.fetch(3, 1)
    led.run(0.1)
    assert (led.node().leader, led.node().isr) == (-1, (2, 3))
    assert led.partition().high_watermark == 1
    elect(led, 2)
    led.run()
    assert handing_over.done()


def test_a_stop_does_not_wait_long_for_acknowledgements(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3, count=250)
    for number in range(250):
        led.harness.append(led.partition(number))
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run(0.9)
    assert led.partition(0).is_leader and led.registry.writes == 0
    led.run(0.2)
    assert {led.node(number).leader for number in range(250)} == {-1}
    handing_over.cancel()
    with pytest.raises(asyncio.CancelledError):
        led.loop.run_until_complete(handing_over)


def test_a_stop_that_has_no_time_gives_back_nothing(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3)
    leader = led.partition().check_leader()
    led.harness.append(led.partition())
    led.loop.run_until_complete(leaving.hand_over(0.5))
    assert led.partition().leader is leader and not leader.ack_waiters.operations


def test_a_partition_that_is_not_given_back_after_all_is_appended_to(leading: Leading) -> None:
    led, leaving = leading(1, 2)
    leader = led.partition().check_leader()
    led.harness.append(led.partition())
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run(0.1)
    # The other one falls out of the ISR meanwhile.
    led.set_node(partition_state(1))
    led.publish()
    led.run(1.0)
    assert handing_over.done() and led.partition().leader is leader
    leader.check_acks(1)


def test_a_stop_leaves_the_isrs_of_what_others_lead(leading: Leading) -> None:
    led, leaving = leading(1, 2, count=2)
    led.set_node(partition_state(2, 1, leader=2, epoch=1), 0)
    led.set_node(partition_state(2, 3, leader=2, epoch=1), 1)
    led.publish()
    led.loop.run_until_complete(leaving.hand_over(5.0))
    assert (led.node(0).leader, led.node(0).isr, led.node(0).eligible) == (2, (2,), incarnations_of(1))
    assert led.node(1).version == 1


def test_what_nobody_else_can_lead_is_led_to_the_end(leading: Leading) -> None:
    led, leaving = leading(1, count=2)
    led.loop.run_until_complete(leaving.hand_over(5.0))
    assert led.partition(0).is_leader and led.partition(1).is_leader
    assert led.registry.writes == 0


def test_a_stop_does_not_wait_for_ever(leading: Leading, caplog: pytest.LogCaptureFixture) -> None:
    led, leaving = leading(1, 2)
    since_s = led.loop.time()
    led.loop.run_until_complete(leaving.hand_over(5.0))
    assert led.loop.time() - since_s == pytest.approx(5.0)
    assert "other brokers do not lead everything after 5.0 s" in caplog.text


def test_a_stop_does_not_wait_for_a_session(leading: Leading) -> None:
    led, leaving = leading(1, 2)
    led.has_session = False
    since_s = led.loop.time()
    led.loop.run_until_complete(leaving.hand_over(5.0))
    assert led.loop.time() == since_s


@pytest.mark.parametrize("fault", ["lost", "dropped"])
def test_a_lost_answer_is_looked_after(leading: Leading, fault: str) -> None:
    led, leaving = leading(1, 2)
    led.registry.faults.append(fault)
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run(0.5)
    led.publish()
    led.run(0.5)
    assert (led.node().leader, led.node().isr, handing_over.done()) == (-1, (2,), False)
    elect(led, 2)
    led.run()
    assert handing_over.done()


def test_a_state_that_has_changed_meanwhile_is_read_again(leading: Leading) -> None:
    led, leaving = leading(1, 2)
    led.set_node(partition_state(1, 2, 3))
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run()
    assert (led.node().leader, led.node().isr) == (-1, (2, 3))
    elect(led, 3)
    led.run()
    assert handing_over.done()


def test_one_state_that_has_changed_meanwhile_keeps_no_other_partition(leading: Leading) -> None:
    led, leaving = leading(1, 2, count=5)
    led.set_node(partition_state(1, 2, 3), 3)
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run()
    assert [(led.node(number).leader, led.node(number).isr) for number in range(5)] == [
        (-1, (2, 3) if number == 3 else (2,)) for number in range(5)
    ]
    for number in range(5):
        elect(led, 2, number)
    led.run()
    assert handing_over.done()


def test_what_a_broker_leads_is_given_back_first(leading: Leading) -> None:
    """Its clients wait for an election, the others only for this broker to be out of the ISR."""
    led, leaving = leading(1, 2, count=150)
    for number in range(100):
        led.set_node(partition_state(2, 1, leader=2, epoch=1), number)
    led.publish()
    led.loop.run_until_complete(leaving.hand_over(0.1))
    zxids = [led.registry.tree.get(znodes.state_path("t", number), 1, None)[1].mzxid for number in range(150)]
    assert max(zxids[100:]) < min(zxids[:100])


def test_a_thousand_partitions_are_handed_over_in_turns(leading: Leading) -> None:
    led, leaving = leading(1, 2, count=300)
    handing_over = led.loop.create_task(leaving.hand_over(5.0))
    led.run()
    assert {led.node(number).isr for number in range(300)} == {(2,)}
    assert led.registry.writes == 3
    handing_over.cancel()
    with pytest.raises(asyncio.CancelledError):
        led.loop.run_until_complete(handing_over)


def test_a_failed_disk_gives_its_partitions_back_within_a_second(leading: Leading) -> None:
    led, leaving = leading(1, 2, count=3)
    led.set_node(partition_state(2, 1, leader=2, epoch=1), 1)
    led.publish()
    for number in (0, 1):
        led.partition(number).go_offline(OSError("bad disk"))
    led.run(1.0)
    # Nothing is eligible there: who knows what the disk has kept.
    assert (led.node(0).leader, led.node(0).isr, led.node(0).eligible) == (-1, (2,), {})
    assert (led.node(1).leader, led.node(1).isr, led.node(1).eligible) == (2, (2,), {})
    assert (led.node(2).leader, led.node(2).isr) == (1, (1, 2))
    assert leaving is not None


def be_refused(led: LedPartitions) -> None:
    """Have a record refused because the disk is full."""
    led.harness.fs.fail("pwrite", errno.ENOSPC)
    with pytest.raises(KafkaStorageError):
        led.harness.append(led.partition())


def test_a_full_disk_gives_back_what_others_can_commit_without_it(leading: Leading) -> None:
    led, _ = leading(1, 2, 3)
    be_refused(led)
    led.run()
    assert (led.node().leader, led.node().isr, led.node().eligible) == (-1, (2, 3), {})
    assert not led.partition().is_leader and led.partition().storage_error is None
    elect(led, 2)
    assert isinstance(led.partition().role, Follower)


def test_a_full_disk_keeps_what_others_could_not_commit(leading: Leading) -> None:
    led, _ = leading(1, 2)
    be_refused(led)
    led.run()
    assert led.registry.writes == 0
    assert led.partition().is_leader


def test_when_all_disks_are_full_the_leadership_does_not_go_round_and_round(leading: Leading) -> None:
    led, _ = leading(1, 2, 3)
    for round_ in range(2):
        be_refused(led)
        led.run()
        assert led.node().leader == -1
        led.set_node(partition_state(1, 2, 3, epoch=2 * round_ + 1))
        led.publish()
        # It has the leadership back, and its disk is full still.
        be_refused(led)
        led.run(9.0)
        assert led.node().leader == 1
        led.run(1.0)


def test_what_could_not_be_given_back_after_all_is_led_on(leading: Leading) -> None:
    led, _ = leading(1, 2, 3)
    led.set_node(partition_state(1, 2))
    be_refused(led)
    led.run()
    assert (led.node().leader, led.node().isr) == (1, (1, 2))
    assert led.hosted.taken_up == [led.partition().topic_partition]


def test_a_follower_whose_disk_is_full_leaves_at_once(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3)
    led.set_node(partition_state(2, 1, 3, leader=2, epoch=1))
    led.publish()
    leaving.partition_full(led.partition())
    led.run()
    assert (led.node().leader, led.node().isr) == (2, (2, 3))


def damage(led: LedPartitions) -> None:
    known = led.partition().log.local.known_damage
    known.add(0, 1)
    known.tell()


def test_a_damaged_leader_hands_over_to_a_whole_member_and_not_before_there_is_one(leading: Leading) -> None:
    led, _ = leading(1, 2)
    led.harness.append(led.partition(), 2)
    leader = led.partition().check_leader()
    leader.follower_damage(2, Incarnation(20), 1, ((1, 2),))
    damage(led)
    led.run(5.0)
    assert led.registry.writes == 0 and led.partition().leader is leader, "the other one is damaged, too"
    with pytest.raises(KafkaStorageError):
        led.partition().log.read(0, 1000, 2)
    # It has been healed.
    leader.follower_damage(2, Incarnation(20), 2, ())
    led.set_node(partition_state(1, 2, 3))
    led.publish()
    led.run(5.0)
    assert (led.node().leader, led.node().isr, led.node().eligible) == (-1, (2, 3), {})
    assert not led.partition().is_leader


def test_news_that_come_while_others_are_left_are_looked_at_afterwards(leading: Leading) -> None:
    led, _ = leading(1, 2, count=2)
    leader = led.partition(0).check_leader()
    leader.follower_damage(2, Incarnation(20), 1, ((1, 2),))
    led.harness.append(led.partition(0), 2)
    damage(led)
    led.run(5.0)
    assert led.partition(0).leader is leader
    # The other partition is left for as long as there is no session.
    led.has_session = False
    led.partition(1).go_offline(OSError("bad disk"))
    led.run(1.0)
    leader.follower_damage(2, Incarnation(20), 2, ())
    led.set_node(partition_state(1, 2, 3), 0)
    led.publish()
    led.run(1.0)
    led.has_session = True
    led.run(5.0)
    assert led.node(1).isr == (2,)
    assert (led.node(0).leader, led.node(0).isr) == (-1, (2, 3))


def test_the_last_member_leads_on_with_its_damage_and_accepts_what_nobody_has(
    leading: Leading, caplog: pytest.LogCaptureFixture
) -> None:
    led, _ = leading(1)
    led.harness.append(led.partition(), 2)
    leader, log = led.partition().check_leader(), led.partition().log
    damage(led)
    led.run(5.0)
    assert led.partition().leader is leader and log.damaged_ranges == ((0, 1),)
    leader.follower_fetched(2, Incarnation(20), 0)
    led.run()
    assert log.is_damaged, "broker 3 may have it"
    leader.follower_damage(3, Incarnation(30), 1, ((0, 1),))
    leader.follower_fetched(3, Incarnation(30), 2, None, 0, 1)
    led.run()
    led.harness.io.run_all()
    led.run()
    assert not log.is_damaged
    assert "offsets 0 to 0 are lost: no replica has them" in caplog.text


class Lacking:
    """The only member, whose log lacks committed records that broker 2 has."""

    def __init__(self, leading: Leading, *eligible: int) -> None:
        self.led, self.leaving = leading(1)
        self.partition = self.led.partition()
        self.led.harness.services.on_lacking = self.leaving.partition_lacking
        self.led.set_node(partition_state(1, epoch=1, eligible=incarnations_of(*eligible)))
        self.led.publish()
        self.leader = self.partition.check_leader()

    def contest(self, diverging: tuple[int, int]) -> None:
        """Broker 2's log parts from this one there, and it knows offset 4 to be committed."""
        with pytest.raises(OffsetNotAvailable):
            self.leader.check_divergence(2, Incarnation(20), 5, 5, diverging)
        self.led.harness.io.run_all()

    def check_left_to_broker_2(self, eligible: dict[BrokerId, Incarnation]) -> None:
        node = self.led.node()
        assert (node.leader, node.isr, node.incarnations) == (-1, (2,), incarnations_of(2))
        assert node.eligible == eligible
        assert not self.partition.is_leader


def test_the_only_member_that_lacks_committed_records_leaves_to_the_eligible_replica_that_has_them(
    leading: Leading,
) -> None:
    lacking = Lacking(leading, 2, 3)
    led = lacking.led
    led.harness.append(lacking.partition, 2)
    lacking.contest((1, 1))
    del led.live[2]
    led.publish_brokers()
    lacking.contest((1, 1))
    led.run(5.0)
    assert led.registry.writes == 0 and lacking.partition.leader is lacking.leader, "nobody is there to take over"
    led.live[2] = live_broker(2)
    led.publish_brokers()
    led.registry.faults.append("lost")
    lacking.contest((1, 1))
    led.run(5.0)
    lacking.check_left_to_broker_2(incarnations_of(3))


def test_a_former_member_gets_the_partition_when_the_eligible_replica_has_been_heard(leading: Leading) -> None:
    lacking = Lacking(leading, 3)
    led = lacking.led
    lacking.contest((0, 0))
    led.harness.append(lacking.partition, 1)
    lacking.contest((0, 0))
    led.run(5.0)
    assert led.registry.writes == 0 and lacking.partition.leader is lacking.leader, "broker 3 may have more"
    led.fetch(3, 0)
    led.registry.faults.append("lost")
    lacking.contest((0, 0))
    led.run(5.0)
    lacking.check_left_to_broker_2({})


def test_a_leader_keeps_a_partition_where_it_commits_something_in_the_place_of_what_it_lacks(leading: Leading) -> None:
    lacking = Lacking(leading, 3)
    led, partition = lacking.led, lacking.partition
    for _ in range(2):
        lacking.contest((0, 0))
    led.fetch(3, 0)
    led.harness.append(partition, 1)
    partition.bounds.commit(1)
    lacking.leaving.partition_lacking(partition.topic_partition)
    led.run(5.0)
    assert led.registry.writes == 0 and partition.leader is lacking.leader and lacking.leader.moves is None


def test_a_follower_whose_log_differs_is_held_leaves_and_is_released(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3)
    led.set_node(partition_state(2, 1, 3, leader=2, epoch=1))
    led.publish()
    leaving.partition_differs(led.partition())
    led.loop.call_soon(lambda: None)
    led.run()
    # It is not eligible: the log that it has left with goes.
    assert (led.node().leader, led.node().isr, led.node().eligible) == (2, (2, 3), {})
    assert led.hosted.held == [led.partition()]
    assert led.hosted.released == [(led.partition(), True)]


@pytest.mark.parametrize("why", ["leads", "alone", "no session"])
def test_what_cannot_be_left_is_not_copied_again(leading: Leading, why: str) -> None:
    led, leaving = leading(1, 2)
    if why != "leads":
        led.set_node(partition_state(2, 1, leader=2, epoch=1))
    led.publish()
    if why == "alone":
        del led.live[2]
        led.publish_brokers()
    led.has_session = why != "no session"
    leaving.partition_differs(led.partition())
    led.run()
    assert led.node().isr == ((1, 2) if why == "leads" else (2, 1))
    assert all(not is_left for _, is_left in led.hosted.released)
    # Who is held is released.
    assert [partition for partition, _ in led.hosted.released] == led.hosted.held


def test_a_failed_partition_is_left_as_soon_as_somebody_is_there(leading: Leading) -> None:
    led, _ = leading(1, 2)
    gone = led.live.pop(2)
    led.publish()
    led.partition().go_offline(OSError("bad disk"))
    led.run(5.0)
    assert (led.node().leader, led.node().isr) == (1, (1, 2))
    led.live[2] = gone
    led.publish()
    led.run()
    assert (led.node().leader, led.node().isr) == (-1, (2,))


def test_a_failed_partition_is_left_when_there_is_a_session_again(leading: Leading) -> None:
    led, _ = leading(1, 2)
    led.has_session = False
    led.partition().go_offline(OSError("bad disk"))
    led.run(3.0)
    led.has_session = True
    led.run(1.0)
    assert led.node().isr == (2,)


@pytest.mark.parametrize("isr", [(1, 2), (1,)])
def test_a_log_that_is_gone_is_left_to_those_who_had_it_whether_they_live_or_not(
    leading: Leading, isr: tuple[int, ...]
) -> None:
    led, leaving = leading(*isr)
    led.set_node(partition_state(*isr, eligible=incarnations_of(3)))
    led.live = {BrokerId(1): live_broker(1)}
    led.publish()
    led.registry.faults.append("dropped")
    led.hosted.lost.add(led.partition().topic_partition)
    leaving.log_lost(led.partition().topic_partition, led.partition().topic_id)
    led.run(0.5)
    node = led.node()
    assert (node.leader, node.leader_epoch, node.isr) == (-1, 0, isr[1:])
    assert (node.incarnations, node.eligible) == (incarnations_of(*isr[1:]), incarnations_of(3))


def test_a_log_that_is_gone_and_was_nobody_elses_is_not_left(leading: Leading) -> None:
    led, leaving = leading(1)
    led.hosted.lost.add(led.partition().topic_partition)
    leaving.log_lost(led.partition().topic_partition, led.partition().topic_id)
    led.run(0.5)
    assert led.registry.writes == 0


def test_who_has_a_log_again_is_not_taken_out_for_the_one_that_was_gone(leading: Leading) -> None:
    led, leaving = leading(1, 2)
    leaving.log_lost(led.partition().topic_partition, led.partition().topic_id)
    led.run(0.5)
    assert led.registry.writes == 0


def test_a_node_that_cannot_be_read_is_left_alone(leading: Leading, caplog: pytest.LogCaptureFixture) -> None:
    led, leaving = leading(1, 2)
    led.registry.write(SetData(znodes.state_path("t", 0), b"{"))
    led.loop.run_until_complete(leaving.hand_over(0.5))
    assert "t-0 is not left: registry node /brokers/topics/t/partitions/0/state" in caplog.text


# A disk that does not answer ----------------------------------------------------------------------------------------


def hang(led: LedPartitions, leaving: IsrLeaving) -> None:
    led.partition().log.disk.hanging = "fdatasync has not returned"
    leaving.partitions_hang(list(led.hosted))


def test_what_lies_on_a_disk_that_does_not_answer_is_given_back(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3)
    hang(led, leaving)
    led.run()
    # Not eligible, as with a failed disk.
    assert (led.node().leader, led.node().isr, led.node().eligible) == (-1, (2, 3), {})
    assert led.partition().storage_error is None
    elect(led, 2)
    assert isinstance(led.partition().role, Follower)


def test_a_follower_whose_disk_does_not_answer_leaves(leading: Leading) -> None:
    led, leaving = leading(1, 2)
    led.set_node(partition_state(2, 1, leader=2, epoch=1))
    led.publish()
    hang(led, leaving)
    led.run()
    assert (led.node().leader, led.node().isr, led.node().eligible) == (2, (2,), {})


def test_the_last_live_member_leads_on_and_says_so_once(leading: Leading, caplog: pytest.LogCaptureFixture) -> None:
    led, leaving = leading(1, 2)
    del led.live[2]
    led.publish_brokers()
    hang(led, leaving)
    led.run()
    assert led.registry.writes == 0 and led.partition().is_leader
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("led on, because no other in-sync replica lives: t-0")
    # Another one comes back while the disk still hangs.
    led.live[2] = live_broker(2)
    led.publish_brokers()
    led.run()
    assert (led.node().leader, led.node().isr) == (-1, (2,))
    assert len(caplog.messages) == 1


def test_what_was_not_left_when_the_disk_answers_is_led_on(leading: Leading) -> None:
    led, leaving = leading(1, 2, 3)
    led.registry.faults += ["dropped"] * 2
    hang(led, leaving)
    led.run(0.1)
    led.partition().log.disk.hanging = None
    led.run(1.0)
    assert (led.node().leader, led.node().isr) == (1, (1, 2, 3))
    assert led.hosted.taken_up == [led.partition().topic_partition]
    led.publish_brokers()
    led.run()
    assert led.node().leader == 1
