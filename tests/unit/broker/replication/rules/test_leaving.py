"""Who leaves an ISR by himself, and to whom."""

from __future__ import annotations

from spark_kafkalite.broker.replication.rules.leaving import (
    state_left_to_former,
    state_without,
    state_without_damaged,
    state_without_full,
    state_without_lacking,
    state_without_proof,
)
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.controller.election import elect
from tests.lab.partition_states import incarnations_of, live_broker, partition_state

LIVE = {each: live_broker(each) for each in (1, 2, 3)}
LIVE_4 = {**LIVE, 4: live_broker(4)}
ME = BrokerId(1)


def without_me(state: PartitionState, *, keeps_log: bool = True, eligible_below: int = 2) -> PartitionState | None:
    return state_without(state, ME, LIVE, eligible_below, keeps_log=keeps_log)


def test_a_leader_gives_back_and_leaves() -> None:
    after = without_me(partition_state(1, 2, 3, epoch=4, version=7))
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr, after.version) == (-1, 4, (2, 3), 7)
    assert (after.incarnations, after.eligible) == (incarnations_of(2, 3), {})


def test_a_follower_leaves_and_the_leader_goes_on() -> None:
    after = without_me(partition_state(2, 1, leader=2))
    assert after is not None
    assert (after.leader, after.isr, after.eligible) == (2, (2,), incarnations_of(1))


def test_whose_log_is_lost_is_not_eligible() -> None:
    after = without_me(partition_state(1, 2), keeps_log=False)
    assert after is not None and after.eligible == {}
    after = without_me(partition_state(2, leader=2, eligible=incarnations_of(1, 3)), keeps_log=False)
    assert after is not None and after.eligible == incarnations_of(3)


def test_without_the_rule_nobody_is_eligible() -> None:
    after = without_me(partition_state(1, 2), eligible_below=0)
    assert after is not None and after.eligible == {}


def test_nobody_leaves_who_would_leave_nobody_behind() -> None:
    assert without_me(partition_state(1)) is None
    assert without_me(partition_state(1, 4, replicas=(1, 4))) is None
    # Broker 2 is another one than the member.
    assert without_me(partition_state(1, 2, incarnations=incarnations_of(1, 2, b2=21))) is None
    # One live member is enough; who else is a member is the controller's to say.
    after = without_me(partition_state(1, 4, 3, replicas=(1, 3, 4)))
    assert after is not None and after.isr == (4, 3)


def test_who_is_no_member_has_nothing_to_leave() -> None:
    assert without_me(partition_state(2, 3, leader=2)) is None
    assert without_me(partition_state(2, leader=2, eligible=incarnations_of(1))) is None


def test_who_is_full_leaves_only_where_others_are_enough_to_commit() -> None:
    after = state_without_full(partition_state(1, 2, 3, epoch=4), ME, LIVE, 2, 2)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr, after.eligible) == (-1, 4, (2, 3), {})
    after = state_without_full(partition_state(2, 1, 3, leader=2), ME, LIVE, 2, 2)
    assert after is not None and (after.leader, after.isr) == (2, (2, 3))
    assert state_without_full(partition_state(1, 2), ME, LIVE, 2, 2) is None
    # Broker 4 is dead; broker 1 is no member.
    assert state_without_full(partition_state(1, 2, 4, replicas=(1, 2, 4)), ME, LIVE, 2, 2) is None
    assert state_without_full(partition_state(2, 3, leader=2), ME, LIVE, 1, 1) is None


def test_a_damaged_leader_leaves_it_to_a_whole_member_alone() -> None:
    state = partition_state(1, 2, 3)
    live = {each: live_broker(each) for each in (1, 2, 3)}
    after = state_without_damaged(state, BrokerId(1), live, {2})
    assert after is not None and (after.leader, after.isr, after.eligible) == (-1, (2, 3), {})
    assert state_without_damaged(state, BrokerId(1), live, {2, 3}) is None, "the last one leads on"
    assert state_without_damaged(state, BrokerId(1), {1: live[1]}, ()) is None
    assert state_without_damaged(partition_state(1), BrokerId(1), live, ()) is None


def test_the_last_member_leaves_it_to_a_damaged_log_from_which_it_can_be_healed() -> None:
    state = partition_state(1, replicas=(1, 2, 3), eligible=incarnations_of(2, 3))
    after = state_without_damaged(state, ME, LIVE, {2}, BrokerId(2))
    assert after is not None and (after.leader, after.isr, after.incarnations) == (-1, (2,), incarnations_of(2))
    assert after.eligible == incarnations_of(3)
    assert elect(after, LIVE).leader == 2
    # Not while another member has its log, nor to a broker that is gone.
    assert state_without_damaged(partition_state(1, 3), ME, {1: LIVE[1], 2: LIVE[2]}, {2}, BrokerId(2)) is None
    after = state_without_damaged(partition_state(1, 3), ME, LIVE, {2}, BrokerId(2))
    assert after is not None and after.isr == (3,)
    assert state_without_damaged(state, ME, {1: LIVE[1]}, {2}, BrokerId(2)) is None


def test_who_lacks_committed_records_leaves_it_to_members_or_to_the_eligible_replica_that_has_them() -> None:
    state = partition_state(1, epoch=4, version=7, eligible=incarnations_of(2, 3))
    after = state_without_lacking(state, ME, LIVE, BrokerId(3))
    assert after is not None
    assert (after.leader, after.leader_epoch, after.version) == (-1, 4, 7)
    assert (after.isr, after.incarnations, after.eligible) == ((3,), incarnations_of(3), incarnations_of(2))
    elected = elect(after, LIVE, min_insync=2)
    assert (elected.leader, elected.isr, elected.eligible) == (3, (3,), incarnations_of(2))
    # A broker that was started again, and has proven its log, is meant by its new name.
    live = {**LIVE, 3: live_broker(3, 31, 30)}
    after = state_without_lacking(state, ME, live, BrokerId(3))
    assert after is not None and after.incarnations == incarnations_of(3, b3=31)
    # Members come first, and have what is committed.
    after = state_without_lacking(partition_state(1, 2, eligible=incarnations_of(3)), ME, LIVE, BrokerId(3))
    assert after is not None and (after.isr, after.eligible) == ((2,), incarnations_of(3))


def test_who_lacks_committed_records_leads_on_where_nobody_has_them() -> None:
    state = partition_state(1, eligible=incarnations_of(2))
    for claimant in (None, BrokerId(3)):
        assert state_without_lacking(state, ME, LIVE, claimant) is None, claimant
    assert state_without_lacking(state, ME, {1: LIVE[1]}, BrokerId(2)) is None, "it is not registered"
    another = {**LIVE, 2: live_broker(2, 21)}
    assert state_without_lacking(state, ME, another, BrokerId(2)) is None, "it may have lost its log's end"
    moved = partition_state(1, replicas=(1, 3), eligible=incarnations_of(2))
    assert state_without_lacking(moved, ME, LIVE, BrokerId(2)) is None, "it is no replica any more"
    # A member that is not registered has to leave first.
    state = partition_state(1, 3, eligible=incarnations_of(2))
    assert state_without_lacking(state, ME, {1: LIVE[1], 2: LIVE[2]}, BrokerId(2)) is None


def test_a_former_member_leads_next_once_everybody_else_has_been_heard() -> None:
    state = partition_state(1, 3, replicas=(1, 2, 3, 4), epoch=4, version=7, eligible=incarnations_of(2))
    after = state_left_to_former(state, ME, LIVE_4, BrokerId(4), ())
    assert after is not None and (after.leader, after.leader_epoch, after.version) == (-1, 4, 7)
    assert (after.isr, after.incarnations, after.eligible) == ((4,), incarnations_of(4), {})
    assert elect(after, LIVE_4, min_insync=2).leader == 4
    alone = partition_state(1)
    assert state_left_to_former(alone, ME, LIVE, BrokerId(3), {2}) is None, "broker 2 may have more"
    assert state_left_to_former(alone, ME, LIVE, BrokerId(4), ()) is None, "it is no replica"
    assert state_left_to_former(alone, ME, {1: LIVE[1]}, BrokerId(3), ()) is None, "it is not registered"
    assert state_left_to_former(partition_state(2, leader=2), ME, LIVE, BrokerId(3), ()) is None, "another one leads"


def test_who_takes_back_its_proof_is_meant_no_more() -> None:
    # Others had all of it, whether they live or not.
    after = state_without_proof(partition_state(1, 2, eligible=incarnations_of(3)), ME)
    assert after is not None
    assert (after.leader, after.isr, after.incarnations) == (-1, (2,), incarnations_of(2))
    assert after.eligible == incarnations_of(3)
    after = state_without_proof(partition_state(2, leader=2, eligible=incarnations_of(1)), ME)
    assert after is not None and (after.leader, after.isr, after.eligible) == (2, (2,), {})
    # The last member stays one, and leads only where somebody wants the best log.
    after = state_without_proof(partition_state(1), ME)
    assert after is not None and (after.leader, after.isr, after.incarnations) == (-1, (1,), {})
    assert elect(after, {1: live_broker(1, 11, 10)}).leader == -1
    assert elect(after, {1: live_broker(1, 11, 10)}, unclean=True).leader == 1
    # The only replica leads whatever became of its log.
    alone = state_without_proof(partition_state(1, replicas=(1,)), ME)
    assert alone is not None and elect(alone, {1: live_broker(1, 11, 10)}).leader == 1
    # Nothing is written twice, nor where nobody means it.
    for state in (after, partition_state(2, leader=2)):
        assert state_without_proof(state, ME) is None
