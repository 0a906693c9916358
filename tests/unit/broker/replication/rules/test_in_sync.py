"""Who is in sync, what is committed, and which change of the ISR is due: rule by rule."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.replication.rules.in_sync import HELD_S, InSyncReplicas, IsrChange
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, Incarnation
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from tests.lab.partition_states import incarnations_of, live_broker, partition_state

LAG_S = 30.0


class Leading:
    """Broker 1 leads; what it asks for is in reach, and time stands still until a test moves it."""

    def __init__(self, *isr: int, required: int = 2, log_end: int = 0, first: Any = None) -> None:
        self.live = {each: live_broker(each) for each in (1, 2, 3)}
        self.now_s = 1000.0
        self.log_end = log_end
        self.high_watermark = 0
        self.replicas = InSyncReplicas(BrokerId(1), log_end, lambda: self.live)
        self.replicas.required = required
        self.replicas.take_state(first or partition_state(*isr), self.now_s)
        self.commit()

    def commit(self) -> int:
        if self.replicas.may_commit:
            self.high_watermark = max(self.high_watermark, self.replicas.committed_end_offset(self.log_end))
        return self.high_watermark

    def append(self, count: int = 1) -> int:
        self.log_end += count
        self.replicas.appended()
        return self.commit()

    def fetch(self, number: int, offset: int, incarnation: int | None = None, session: Any = None) -> float | None:
        which = Incarnation(number * 10 if incarnation is None else incarnation)
        look_in_s = self.replicas.fetched(number, which, offset, self.log_end, self.high_watermark, self.now_s, session)
        self.commit()
        return look_in_s

    def due(self, lag_max_s: float = LAG_S) -> IsrChange | None:
        change = self.replicas.due(self.now_s, self.high_watermark, lag_max_s)
        self.commit()
        return change

    def proposed(self, lag_max_s: float = LAG_S) -> PartitionState:
        change = self.due(lag_max_s)
        assert change is not None
        return change.after

    def write(self, change: IsrChange | None = None) -> PartitionState:
        """Have the change that is under way written."""
        change = change or self.replicas.change
        assert change is not None
        self.replicas.written(change, change.before.version + 1, 77, self.now_s)
        self.commit()
        return self.replicas.state


# The high watermark -----------------------------------------------------------------------------------------------


def test_with_three_in_the_isr_the_high_watermark_is_the_smallest_of_their_log_ends() -> None:
    leading = Leading(1, 2, 3)
    assert leading.append(10) == 0
    leading.fetch(2, 7)
    assert leading.high_watermark == 0
    leading.fetch(3, 4)
    assert leading.high_watermark == 4
    leading.fetch(3, 10)
    assert leading.high_watermark == 7


def test_a_lone_leader_commits_at_the_append() -> None:
    leading = Leading(1, required=1)
    assert (leading.replicas.is_alone, leading.append(3)) == (True, 3)


def test_what_another_incarnation_of_a_member_has_counts_for_nothing() -> None:
    leading = Leading(1, 2)
    leading.append(5)
    leading.fetch(2, 5, incarnation=21)
    leading.fetch(2, 5, incarnation=UNKNOWN_INCARNATION)
    assert leading.high_watermark == 0
    # It is the member's log all the same, where the registration says so.
    leading.live[2] = live_broker(2, 21, 20)
    leading.fetch(2, 5, incarnation=21)
    assert leading.due() is not None
    assert leading.high_watermark == 5


def test_what_a_former_process_of_a_member_had_on_its_way_changes_nothing() -> None:
    """The member's own session does not say again what it has."""
    leading = Leading(1, 2)
    leading.append(5)
    leading.fetch(2, 5)
    leading.fetch(2, 3, incarnation=19)
    assert leading.due() is None
    assert leading.append() == 5
    leading.fetch(2, 6)
    assert leading.high_watermark == 6


def test_what_a_process_has_said_before_its_registration_was_known_counts_from_then_on() -> None:
    leading = Leading(1, 2)
    leading.append(5)
    leading.fetch(2, 5)
    leading.fetch(2, 5, incarnation=21)
    assert leading.due() is None
    leading.live[2] = live_broker(2, 21)
    assert leading.proposed().incarnations == {1: 10, 2: 21}


def test_below_min_insync_replicas_nothing_is_committed_unless_the_setting_says_so() -> None:
    leading = Leading(1, required=2)
    assert leading.append(3) == 0
    assert not leading.replicas.is_enough
    leading.replicas.keeps_eligible = False
    assert leading.commit() == 3


# Leaving ----------------------------------------------------------------------------------------------------------


def test_a_member_without_registration_leaves_at_once_and_counts_until_that_is_written() -> None:
    leading = Leading(1, 2, 3)
    leading.append(5)
    leading.fetch(2, 5)
    del leading.live[3]
    after = leading.proposed()
    assert (after.isr, after.incarnations, after.eligible) == ((1, 2), incarnations_of(1, 2), {})
    assert leading.high_watermark == 0
    # One at a time.
    assert leading.due() is None
    assert (leading.write().version, leading.high_watermark) == (1, 5)
    assert leading.due() is None


def test_a_member_that_restarted_with_an_unproven_log_leaves_and_comes_back_by_catching_up() -> None:
    leading = Leading(1, 2, 3)
    leading.append(5)
    leading.fetch(3, 5)
    leading.live[2] = live_broker(2, 21)
    assert leading.proposed().isr == (1, 3)
    leading.write()
    leading.fetch(2, 3, incarnation=21)
    assert leading.due() is None
    assert leading.fetch(2, 5, incarnation=21) == 0.0
    after = leading.proposed()
    assert (after.isr, after.incarnations) == ((1, 3, 2), incarnations_of(1, 2, 3, b2=21))


def test_a_restarted_member_that_has_caught_up_already_is_exchanged_in_one_write() -> None:
    leading = Leading(1, 2)
    leading.append(5)
    leading.live[2] = live_broker(2, 21)
    assert leading.fetch(2, 5, incarnation=21) == 0.0
    after = leading.proposed()
    assert (after.isr, after.incarnations) == ((1, 2), incarnations_of(1, 2, b2=21))
    # Until then the one that is gone counts, and nothing new is known of it.
    assert leading.high_watermark == 0
    leading.write()
    assert leading.high_watermark == 5


def test_a_member_whose_restart_left_its_log_whole_stays_and_is_named_anew() -> None:
    leading = Leading(1, 2)
    leading.live[2] = live_broker(2, 21, 20)
    leading.live[1] = live_broker(1, 11, 10)
    after = leading.proposed()
    assert (after.isr, after.incarnations) == ((1, 2), incarnations_of(1, 2, b1=11, b2=21))


def test_a_member_that_a_foreign_state_names_without_incarnation_leaves() -> None:
    leading = Leading(first=partition_state(1, 2, incarnations=incarnations_of(1)))
    leading.fetch(2, 0, incarnation=UNKNOWN_INCARNATION)
    assert leading.proposed().isr == (1,)


def test_a_slow_member_leaves_after_the_lag() -> None:
    leading = Leading(1, 2, 3)
    leading.append(5)
    leading.fetch(2, 3)
    leading.now_s += LAG_S
    leading.fetch(3, 5)
    assert leading.due() is None
    leading.now_s += 0.001
    # What comes for another reason than the time does not look at the time.
    assert leading.due(math.inf) is None
    assert leading.proposed().isr == (1, 3)


def test_a_slow_member_does_not_come_back_before_it_has_caught_up() -> None:
    leading = Leading(1, 2, required=2)
    leading.append(5)
    leading.fetch(2, 3)
    leading.now_s += LAG_S + 1
    assert leading.proposed().isr == (1,)
    leading.write()
    # The high watermark stands where it was, so that it has everything below.
    assert (leading.fetch(2, 4), leading.due()) == (None, None)
    assert leading.fetch(2, 5) == 0.0
    assert leading.proposed().isr == (1, 2)


def test_a_follower_that_is_always_one_round_behind_is_in_sync() -> None:
    leading = Leading(1, 2)
    for _ in range(100):
        end = leading.log_end
        leading.append()
        leading.now_s += LAG_S / 3
        leading.fetch(2, end)
        assert leading.due() is None


def test_idle_partitions_keep_their_followers_by_the_fetches_of_the_session() -> None:
    """334 idle partitions for twice the limit, then one record each: no change of any ISR."""
    session = SimpleNamespace(last_fetch_s=1000.0)
    partitions = [Leading(1, 2, 3) for _ in range(334)]
    for leading in partitions:
        for follower in (2, 3):
            leading.fetch(follower, 0, session=session)
    for _ in range(int(2 * LAG_S)):
        session.last_fetch_s += 1
    for leading in partitions:
        leading.now_s = session.last_fetch_s + 0.4
        assert leading.due() is None
        leading.append()
        assert leading.due() is None
        leading.now_s += LAG_S - 0.4
        assert leading.due() is None
        # Who has not come for it by now is slow, however busy the session is.
        session.last_fetch_s = leading.now_s
        leading.append()
        leading.now_s += 0.1
        assert leading.proposed().isr == (1,)
        session.last_fetch_s = 1000.0 + 2 * LAG_S


# Eligible replicas --------------------------------------------------------------------------------------------------


def test_who_leaves_below_min_insync_replicas_stays_eligible_until_there_are_enough_again() -> None:
    leading = Leading(1, 2, 3, required=2)
    leading.append(4)
    for follower in (2, 3):
        leading.fetch(follower, 4)
    del leading.live[3]
    assert leading.proposed().eligible == {}
    leading.write()
    del leading.live[2]
    assert leading.proposed().eligible == incarnations_of(2)
    leading.write()
    leading.append(2)
    assert leading.high_watermark == 4
    leading.live[3] = live_broker(3, 31)
    leading.fetch(3, 6, incarnation=31)
    after = leading.proposed()
    assert (after.isr, after.eligible) == ((1, 3), {})
    # Broker 2 is eligible until that is written.
    assert leading.high_watermark == 4
    leading.write()
    assert leading.high_watermark == 6


def test_all_who_leave_at_once_are_eligible_with_those_who_were() -> None:
    leading = Leading(first=partition_state(1, 2, eligible=incarnations_of(3)), required=3)
    del leading.live[2]
    assert leading.proposed().eligible == incarnations_of(2, 3)


def test_nothing_is_committed_before_nobody_is_eligible_any_more_when_the_setting_changes() -> None:
    leading = Leading(first=partition_state(1, eligible=incarnations_of(2)), required=2)
    leading.append(3)
    leading.replicas.required = 1
    assert leading.commit() == 0
    assert leading.proposed().eligible == {}
    assert leading.high_watermark == 0
    leading.write()
    assert leading.high_watermark == 3


def test_without_the_setting_nobody_is_eligible() -> None:
    leading = Leading(1, 2, required=2)
    leading.replicas.keeps_eligible = False
    del leading.live[2]
    assert leading.proposed().eligible == {}


# Joining ------------------------------------------------------------------------------------------------------------


def test_who_joins_counts_from_the_moment_that_it_is_proposed() -> None:
    leading = Leading(1, required=1)
    leading.append(5)
    assert leading.fetch(2, 5) == 0.0
    assert leading.proposed().isr == (1, 2)
    assert leading.append() == 5
    assert leading.write().isr == (1, 2)
    leading.fetch(2, 6)
    assert leading.high_watermark == 6


@pytest.mark.parametrize("problem", ["behind", "before the epoch", "gone", "restarted", "no replica"])
def test_who_cannot_join(problem: str) -> None:
    leading = Leading(1, required=1)
    leading.append(5)
    offset = 5
    if problem == "behind":
        offset = 4
    elif problem == "before the epoch":
        leading.replicas.epoch_start_offset = 6
    elif problem == "gone":
        del leading.live[2]
    elif problem == "restarted":
        leading.live[2] = live_broker(2, 21)
    else:
        leading.replicas.take_state(partition_state(1, version=1, replicas=(1, 3)), leading.now_s)
    leading.fetch(2, offset)
    assert leading.due() is None


def test_the_high_watermark_of_a_lone_leader_waits_a_moment_for_one_that_is_nearly_there() -> None:
    """Under load it would otherwise run away from every follower, and none would ever join."""
    leading = Leading(1, required=1)
    leading.append(5)
    assert leading.fetch(2, 3) is None
    leading.append()
    assert leading.fetch(2, 5) == HELD_S
    assert (leading.append(), leading.high_watermark) == (6, 6)
    assert leading.fetch(2, 6) == 0.0
    assert (leading.proposed().isr, leading.high_watermark) == ((1, 2), 6)


def test_the_high_watermark_waits_for_nobody_who_does_not_come() -> None:
    leading = Leading(1, required=1)
    leading.append(5)
    leading.fetch(2, 3)
    leading.append()
    leading.fetch(2, 5)
    assert leading.append(4) == 6
    assert leading.replicas.held_until_s == leading.now_s + HELD_S
    leading.now_s += HELD_S
    leading.replicas.release(leading.now_s)
    assert leading.replicas.held_until_s is None
    assert leading.commit() == 10


def test_a_member_that_takes_itself_out_joins_only_after_another_fetch() -> None:
    leading = Leading(1, 2, 3)
    leading.fetch(2, 0)
    leading.fetch(3, 0)
    leading.replicas.take_state(partition_state(1, 3, version=1), leading.now_s)
    assert leading.due() is None
    assert leading.fetch(2, 0) == 0.0
    assert leading.proposed().isr == (1, 3, 2)


def test_a_member_that_took_itself_out_and_came_to_the_end_before_that_was_known_says_so_again() -> None:
    """In its session it would not name again what has not moved."""
    leading, named_again = Leading(1, 2, 3), []
    sessions = [
        SimpleNamespace(last_fetch_s=1000.0, name_again=lambda number=number: named_again.append(number))
        for number in (2, 3)
    ]
    for number, session in zip((2, 3), sessions, strict=True):
        leading.fetch(number, 0, session=session)
    leading.replicas.take_state(partition_state(1, 3, version=1), leading.now_s)
    assert (leading.due(), named_again) == (None, [2])


def test_a_restarted_member_that_takes_itself_out_need_not_say_again_what_it_has() -> None:
    leading = Leading(1, 2, 3)
    leading.live[2] = live_broker(2, 21)
    leading.fetch(2, 0, incarnation=21)
    leading.replicas.take_state(partition_state(1, 3, version=1), leading.now_s)
    assert leading.proposed().incarnations == incarnations_of(1, 2, 3, b2=21)


# Outcomes -----------------------------------------------------------------------------------------------------------


def test_a_change_that_the_registry_shows_before_its_answer_counts_once() -> None:
    leading = Leading(1, 2, 3)
    del leading.live[3]
    change = leading.due()
    assert change is not None
    leading.replicas.take_state(partition_state(1, 2, version=1), leading.now_s)
    assert leading.replicas.change is None
    leading.write(change)
    assert leading.replicas.state.version == 1


def test_an_unknown_outcome_leaves_the_maximal_isr_until_the_state_has_been_read() -> None:
    leading = Leading(1, required=1)
    leading.append(5)
    leading.fetch(2, 5)
    change = leading.due()
    assert change is not None
    leading.append()
    assert (leading.high_watermark, leading.due()) == (5, None)
    leading.replicas.resolved(change, partition_state(1), leading.now_s)
    assert leading.commit() == 6
    # And again.
    leading.fetch(2, 6)
    change = leading.due()
    assert change is not None
    leading.replicas.resolved(change, partition_state(1, 2, version=1), leading.now_s)
    leading.append()
    assert (leading.commit(), leading.replicas.change, leading.replicas.state.isr) == (6, None, (1, 2))


def test_another_version_is_adopted_and_the_change_worked_out_anew() -> None:
    leading = Leading(1, 2, 3)
    del leading.live[3]
    change = leading.due()
    assert change is not None
    # Broker 2 has taken itself out in between.
    leading.replicas.resolved(change, partition_state(1, 3, version=1), leading.now_s)
    after = leading.proposed()
    assert (after.isr, after.version, after.eligible) == ((1,), 1, incarnations_of(3))


@pytest.mark.parametrize(
    "found", [None, partition_state(2, 3, version=1, leader=2, epoch=6), partition_state(2, version=1, leader=-1)]
)
def test_a_leader_that_another_epoch_has_followed_changes_nothing_any_more(found: Any) -> None:
    leading = Leading(1, required=1)
    leading.append(5)
    leading.fetch(2, 5)
    change = leading.due()
    assert change is not None
    leading.replicas.resolved(change, found, leading.now_s)
    leading.append()
    assert (leading.commit(), leading.due()) == (5, None)


def test_older_states_are_ignored() -> None:
    leading = Leading(first=partition_state(1, 2, version=4))
    leading.replicas.take_state(partition_state(1, version=4), leading.now_s)
    leading.replicas.take_state(partition_state(1, version=3), leading.now_s)
    assert leading.replicas.state.isr == (1, 2)


# Two nodes -----------------------------------------------------------------------------------------------------------


def test_a_replica_list_that_changes_alone_is_obeyed() -> None:
    leading = Leading(first=partition_state(1, replicas=(1,), version=3, replicas_zxid=5), required=1)
    leading.append(5)
    leading.replicas.take_state(partition_state(1, replicas=(1, 2), version=3, replicas_zxid=6), leading.now_s)
    leading.fetch(2, 5)
    assert leading.proposed().isr == (1, 2)
    assert leading.write().replicas == (1, 2)


def test_a_newer_state_with_older_replicas_does_not_bring_these_back() -> None:
    """A multi that writes both nodes is read in two parts."""
    leading = Leading(first=partition_state(1, replicas=(1, 2), version=3, replicas_zxid=6))
    leading.replicas.take_state(partition_state(1, 2, replicas=(1,), version=4, replicas_zxid=5), leading.now_s)
    state = leading.replicas.state
    assert (state.replicas, state.isr, state.version) == ((1, 2), (1, 2), 4)


def test_a_member_that_was_just_added_is_not_forgotten_because_the_topic_node_has_changed() -> None:
    leading = Leading(first=partition_state(1, version=5, created_zxid=2, replicas_zxid=1), required=1)
    leading.append(5)
    leading.fetch(2, 5)
    assert leading.proposed().isr == (1, 2)
    assert leading.write().version == 6
    # The answer has overtaken the news of version 6; what comes is a newer topic node, and version 5 beside it.
    old = partition_state(1, version=5, replicas=(1, 2, 3, 4), created_zxid=2, replicas_zxid=8)
    leading.replicas.take_state(old, leading.now_s)
    state = leading.replicas.state
    assert (state.isr, state.version, state.replicas) == ((1, 2), 6, (1, 2, 3, 4))
    leading.append()
    assert leading.high_watermark == 5, "the member that was added counts no more"


def test_newer_replicas_end_no_change_that_is_being_written() -> None:
    leading = Leading(first=partition_state(1, version=5, replicas_zxid=1), required=1)
    leading.append(5)
    leading.fetch(2, 5)
    change = leading.due()
    assert change is not None
    leading.replicas.take_state(partition_state(1, version=5, replicas=(1, 2, 3, 4), replicas_zxid=8), leading.now_s)
    leading.append()
    assert (leading.replicas.change, leading.high_watermark) == (change, 5)
    state = leading.write(change)
    assert (state.isr, state.version, state.replicas) == ((1, 2), 6, (1, 2, 3, 4))


def test_who_is_no_replica_any_more_counts_until_the_leader_has_written_that_it_has_left() -> None:
    leading = Leading(first=partition_state(1, 2, 3, version=5, replicas_zxid=1))
    leading.append(5)
    leading.fetch(2, 5)
    leading.fetch(3, 4)
    leading.replicas.take_state(partition_state(1, 2, 3, version=5, replicas=(1, 2), replicas_zxid=8), leading.now_s)
    assert leading.commit() == 4
    after = leading.proposed()
    assert (after.isr, after.incarnations, after.replicas) == ((1, 2), incarnations_of(1, 2), (1, 2))
    leading.write()
    assert leading.commit() == 5


def test_who_was_out_of_the_replicas_for_a_while_is_believed_only_what_it_says_anew() -> None:
    """It may have set its log aside meanwhile."""
    leading = Leading(first=partition_state(1, version=5, replicas_zxid=1), required=1)
    leading.append(5)
    leading.fetch(2, 5)
    change = leading.due()
    assert change is not None
    leading.replicas.resolved(change, partition_state(1, version=5), leading.now_s)
    for replicas, zxid in (((1, 3), 8), ((1, 2, 3), 9)):
        leading.replicas.take_state(partition_state(1, version=5, replicas=replicas, replicas_zxid=zxid), leading.now_s)
    assert leading.due() is None
    leading.fetch(2, 5)
    assert leading.proposed().isr == (1, 2)


def test_who_is_no_replica_is_not_kept_eligible() -> None:
    leading = Leading(first=partition_state(1, 2, 3, version=5, replicas_zxid=1), required=3)
    leading.replicas.take_state(partition_state(1, 2, 3, version=5, replicas=(1, 2), replicas_zxid=8), leading.now_s)
    assert leading.proposed().eligible == {}


def test_a_state_node_that_was_made_again_is_news() -> None:
    leading = Leading(first=partition_state(1, 2, 3, version=40, created_zxid=3))
    leading.replicas.take_state(partition_state(1, 2, version=0, created_zxid=70), leading.now_s)
    assert (leading.replicas.state.isr, leading.replicas.state.version) == ((1, 2), 0)
    leading.replicas.take_state(partition_state(1, 2, 3, version=41, created_zxid=3), leading.now_s)
    assert leading.replicas.state.version == 0


def test_a_leader_that_is_no_replica_any_more_proposes_nothing() -> None:
    leading = Leading(first=partition_state(1, 2, version=5, replicas_zxid=1), required=1)
    del leading.live[2]
    leading.replicas.take_state(partition_state(1, 2, version=5, replicas=(2, 3), replicas_zxid=8), leading.now_s)
    assert leading.due() is None


# Damaged logs ------------------------------------------------------------------------------------------------------


def test_a_damaged_member_leaves_is_not_eligible_and_counts_until_that_is_written() -> None:
    leading = Leading(1, 2, 3, required=3)
    leading.append(10)
    leading.fetch(2, 10)
    leading.fetch(3, 10)
    replicas, which = leading.replicas, Incarnation(20)
    assert replicas.damaged(2, which, 1, is_damaged=True)
    assert not replicas.is_uncounted(2, which, 1)
    after = leading.proposed()
    assert (after.isr, after.eligible) == ((1, 3), {}), "what it lacks may have been committed"
    assert not replicas.is_uncounted(2, which, 1), "the registry may have it as a member still"
    leading.write()
    assert replicas.is_uncounted(2, which, 1)
    assert not replicas.is_uncounted(2, which, 2) and not replicas.is_uncounted(3, Incarnation(30), 1)
    # It does not join while it is damaged, though it is at the end.
    leading.replicas.required = 1
    assert leading.fetch(2, 10) is None
    replicas.fetched(2, which, 10, 10, leading.high_watermark, leading.now_s, None, 1)
    assert leading.due() is None


def test_a_damaged_replica_that_is_eligible_is_so_no_more() -> None:
    leading = Leading(first=partition_state(1, 3, eligible=incarnations_of(2)), required=3)
    leading.fetch(3, 0)
    leading.replicas.damaged(2, Incarnation(20), 1, is_damaged=True)
    assert not leading.replicas.is_uncounted(2, Incarnation(20), 1)
    assert leading.proposed().eligible == {}
    leading.write()
    assert leading.replicas.is_uncounted(2, Incarnation(20), 1)


def test_what_a_healed_log_had_before_it_was_cut_does_not_count() -> None:
    leading = Leading(1, 3, required=1)
    leading.append(10)
    leading.fetch(3, 10)
    replicas, which = leading.replicas, Incarnation(20)

    def fetch(offset: int, stage: int) -> None:
        replicas.fetched(2, which, offset, leading.log_end, leading.high_watermark, leading.now_s, None, stage)

    replicas.damaged(2, which, 1, is_damaged=True)
    fetch(10, 1)
    assert leading.due() is None
    # It has been cut back to 4; requests of before come late, by another connection.
    assert replicas.damaged(2, which, 2, is_damaged=False)
    fetch(4, 2)
    fetch(10, 1)
    fetch(10, 0)
    assert not replicas.damaged(2, which, 1, is_damaged=True)
    assert leading.due() is None, "it has 4 of 10 records"
    fetch(10, 2)
    assert leading.proposed().isr == (1, 3, 2)


def test_where_a_damaged_log_ends_is_unknown_until_it_is_reported_anew() -> None:
    """Otherwise its leader takes it for an empty log, and accepts as lost what only this one has."""
    leading = Leading(1, 3, required=1)
    leading.append(10)
    leading.fetch(2, 7)
    replicas, which = leading.replicas, Incarnation(20)
    assert replicas.end_offset_of(2) == 7
    replicas.damaged(2, which, 1, is_damaged=True)
    assert replicas.end_offset_of(2) is None
    replicas.fetched(2, which, 7, 10, leading.high_watermark, leading.now_s, None, 0)
    assert replicas.end_offset_of(2) is None, "it may have been sent before the damage was found"
    replicas.fetched(2, which, 7, 10, leading.high_watermark, leading.now_s, None, 1)
    assert replicas.end_offset_of(2) == 7


# Contests ---------------------------------------------------------------------------------------------------------


def test_a_member_that_contests_is_not_slow() -> None:
    leading = Leading(1, 2, 3, log_end=10)
    leading.fetch(3, 10)
    leading.append()
    leading.now_s += LAG_S + 1
    leading.replicas.contested(2, leading.now_s)
    assert leading.proposed().isr == (1, 2)
    leading.write()
    leading.now_s += LAG_S + 1
    assert leading.proposed().isr == (1,)


def test_no_replica_joins_while_an_eligible_one_contests() -> None:
    leading = Leading(first=partition_state(1, eligible=incarnations_of(2)), log_end=10)
    leading.replicas.contested(2, leading.now_s)
    leading.fetch(3, 10)
    assert leading.due() is None
    # It stays eligible, also where the ISR is large enough by now.
    leading.replicas.required = 1
    assert leading.due() is None and not leading.replicas.may_commit
    leading.replicas.required = 2
    # The leader's file of leader epochs was wrong, and the logs fit.
    leading.fetch(2, 10)
    assert leading.proposed().isr == (1, 2, 3)


def test_no_replica_joins_while_a_former_member_contests() -> None:
    leading = Leading(first=partition_state(1, eligible=incarnations_of(3)), log_end=10)
    assert leading.replicas.unheard(2) == {3}
    leading.replicas.contested(2, leading.now_s)
    leading.fetch(3, 10)
    assert leading.due() is None and leading.replicas.unheard(2) == frozenset()
    # Its log was set aside, or the leader's file was wrong.
    leading.fetch(2, 0)
    assert leading.proposed().isr == (1, 3)


def test_only_the_registered_process_of_a_replica_without_damage_may_lead_next() -> None:
    leading = Leading(1)
    assert leading.replicas.may_succeed(2, Incarnation(20))
    assert not leading.replicas.may_succeed(2, Incarnation(21))
    assert not leading.replicas.may_succeed(4, Incarnation(40))
    leading.replicas.damaged(2, Incarnation(20), 1, is_damaged=True)
    assert not leading.replicas.may_succeed(2, Incarnation(20))


def test_who_is_gone_holds_up_nothing() -> None:
    leading = Leading(first=partition_state(1, eligible=incarnations_of(2)), log_end=10)
    leading.replicas.contested(2, leading.now_s)
    leading.fetch(3, 10)
    del leading.live[2]
    assert leading.proposed().isr == (1, 3)
