"""Where the best log leads without an operator, and where not, over random histories of logs that part (rule R18)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from spark_kafkalite.model import BrokerId, LeaderEpoch
from spark_kafkalite.registry.controller.best_log import best_log
from spark_kafkalite.registry.controller.recovery import contains, needs_no_setting, why_not_recovered
from spark_kafkalite.registry.report_nodes import EMPTY, MISSING, OFFLINE, LogReport
from tests.seeds import SEED
from tests.unit.registry.controller.test_best_log import Log, a_history, ends_at, leaderless, live, logs

CASES = 5000
ALL = live(1, 2, 3)
NOTHING = LogReport(50, 7, gone=EMPTY)
# What the controller makes where there is no state.
NOBODY = replace(leaderless(isr=()), leader_epoch=LeaderEpoch(0))


EMPTIED = LogReport(50, 7, -1, 580, high_watermark=580, log_start_offset=580)


@pytest.mark.parametrize("deletes", [False, True])
def test_what_leads_by_itself_has_every_record_that_any_replica_has(deletes: bool) -> None:
    chance = random.Random(SEED)
    outcomes: Counter[bool] = Counter()
    emptied: Counter[bool] = Counter()
    for _ in range(CASES):
        replicas = a_history(chance, deletes=deletes)
        if chance.random() < 0.2:
            # A directory of earlier, which is sound as far as it goes.
            older = chance.choice(replicas)
            older.lose_end(chance.randrange(len(older.records) + 1))
        found = {BrokerId(number): each.report() for number, each in enumerate(replicas, 1)}
        named = [BrokerId(each) for each in chance.sample((1, 2, 3), chance.randrange(1, 4))]
        for broker in named:
            if not found[broker].end_offset:
                found[broker] = NOTHING
        # Where somebody has deleted the state, nobody is named, and epochs are not known.
        state = NOBODY if chance.random() < 0.3 else leaderless(isr=named)
        by_itself = not why_not_recovered(state, ALL, found)
        outcomes[by_itself] += 1
        emptied[by_itself] += any(each.is_emptied for each in found.values())
        leader = best_log(state, ALL, found)
        assert leader is not None
        has = set(replicas[leader - 1].records)
        if by_itself:
            assert leader in named or state is NOBODY
            for each in replicas:
                assert has.issuperset(each.present), (state, replicas)
                # No offset that was deleted is given to another record.
                assert each.start <= replicas[leader - 1].end
    assert min(outcomes[True], outcomes[False]) > CASES / 20, outcomes
    assert not deletes or min(emptied[True], emptied[False]) > CASES / 40, emptied


def test_a_log_contains_another_one_only_where_its_epochs_say_so() -> None:
    chance = random.Random(SEED)
    told: Counter[tuple[bool, bool]] = Counter()
    for _ in range(CASES):
        one, other, _ = a_history(chance)
        if not one.records or not other.records or one.records[-1][0] < other.records[-1][0]:
            continue
        told[contains(one.report(), other.report()), set(one.records).issuperset(other.records)] += 1
    assert not told[True, False]
    assert told[True, True] > 9 * told[False, True], "what is beyond the reports' reach is rare"


def test_an_epoch_beyond_the_reach_of_a_report_asks_for_an_operator() -> None:
    best = Log([(epoch, epoch) for epoch in range(6)])
    found = logs(b1=best.report(), b2=Log(best.records[:4]).report(), b3=Log(best.records[:2]).report())
    assert why_not_recovered(leaderless(), ALL, found) == "broker 3 may have records that broker 1 has not"
    found[BrokerId(3)] = found[BrokerId(2)]
    assert why_not_recovered(leaderless(), ALL, found) == ""


def test_a_log_of_which_everything_was_deleted_lacks_nothing() -> None:
    state = leaderless()
    assert why_not_recovered(state, ALL, logs(b1=EMPTIED, b2=ends_at(580), b3=ends_at(580))) == ""
    assert why_not_recovered(state, ALL, logs(b1=EMPTIED, b2=EMPTIED, b3=ends_at(600))) == ""
    assert why_not_recovered(state, ALL, logs(b1=EMPTIED, b2=EMPTIED, b3=EMPTIED)) == ""
    # The one that ends last was not in sync.
    assert why_not_recovered(leaderless(isr=(1,)), ALL, logs(b1=EMPTIED, b2=EMPTIED, b3=ends_at(600)))
    # It may have been a later leader's than the records of the others, or an earlier one's.
    assert why_not_recovered(state, ALL, logs(b1=EMPTIED, b2=ends_at(579), b3=ends_at(579))) == (
        "broker 1 has a log without records that starts and ends at 580, behind the end of the log of broker 2"
    )
    # An earlier version's report does not say that it is empty, and no leader epoch says what it has.
    unsaid = replace(EMPTIED, log_start_offset=-1)
    assert why_not_recovered(state, ALL, logs(b1=unsaid, b2=ends_at(580), b3=ends_at(580))) == (
        "broker 1 may have records that broker 2 has not"
    )
    assert why_not_recovered(state, ALL, logs(b1=EMPTIED, b2=EMPTIED, b3=replace(unsaid, end_offset=500)))
    # What is damaged there is not known to be empty.
    damaged = replace(EMPTIED, damaged=((580, 590),))
    assert why_not_recovered(state, ALL, logs(b1=damaged, b2=ends_at(580), b3=ends_at(580)))


def test_every_replica_has_to_be_there_with_a_sound_log() -> None:
    state, all_there = leaderless(), logs(b1=ends_at(500), b2=ends_at(1500), b3=ends_at(1500))
    assert why_not_recovered(state, ALL, all_there) == ""
    assert why_not_recovered(state, live(1, 2), all_there) == "broker 3 is not registered"
    assert why_not_recovered(state, ALL, logs(b1=ends_at(500), b2=ends_at(1500))) == (
        "broker 3 has not reported its log"
    )
    # A member of the ISR that is no replica any more, and an eligible replica, are asked, too.
    assert "broker 4" in why_not_recovered(leaderless(isr=(1, 2, 4)), ALL, all_there)
    assert "broker 5" in why_not_recovered(leaderless(eligible=(5,)), ALL, all_there)
    for wrong in (
        replace(NOTHING, gone=MISSING),
        replace(NOTHING, gone=OFFLINE),
        NOTHING,
        ends_at(0, -1),
        ends_at(500, damaged=True),
        ends_at(500, 10),
    ):
        assert why_not_recovered(state, ALL, {**all_there, BrokerId(1): wrong}).startswith("broker 1 has ")
    assert why_not_recovered(state, ALL, {**all_there, BrokerId(1): ends_at(5, 6)}) == (
        "broker 2 may have records that broker 1 has not"
    )


def test_who_was_in_sync_and_has_less_than_others_may_have_had_more_elsewhere() -> None:
    """Broker 1 alone had what was committed, and comes back with yesterday's directory."""
    found = logs(b1=ends_at(500), b2=ends_at(1500), b3=ends_at(1400))
    assert why_not_recovered(leaderless(isr=(1,)), ALL, found) == (
        "broker 2, which was not in sync, has more than those that were"
    )
    assert why_not_recovered(leaderless(isr=(1,), eligible=(2,)), ALL, found) == ""
    found[BrokerId(1)] = ends_at(1500)
    assert why_not_recovered(leaderless(isr=(1,)), ALL, found) == ""


def test_empty_logs_are_led_where_they_are_those_that_the_replicas_had() -> None:
    nothing = logs(b1=NOTHING, b2=NOTHING, b3=NOTHING)
    for state in (
        leaderless(),
        leaderless(isr=(1,), eligible=(2, 3)),
        replace(leaderless(), leader_epoch=LeaderEpoch(1)),
    ):
        assert why_not_recovered(state, ALL, nothing) == ""
    # Broker 3 has left: its log was gone, and it has made another one.
    made_anew = {**nothing, BrokerId(3): ends_at(0, -1)}
    assert why_not_recovered(leaderless(isr=(1, 2)), ALL, made_anew)
    assert why_not_recovered(leaderless(isr=(3,)), ALL, nothing)
    # Something was there.
    remembered = {**nothing, BrokerId(2): replace(NOTHING, high_watermark=7)}
    assert why_not_recovered(leaderless(), ALL, remembered) == "broker 2 has an empty log, and had 7 records"


def test_a_state_that_names_nobody_is_led_by_what_all_logs_have() -> None:
    all_there = logs(b1=ends_at(500), b2=ends_at(1500), b3=ends_at(1400))
    assert NOBODY.names_nobody
    # Nobody is known to have been in sync, nor which epochs there were.
    assert why_not_recovered(NOBODY, ALL, all_there) == ""
    assert not needs_no_setting(NOBODY, all_there)
    assert why_not_recovered(NOBODY, live(1, 2), all_there) == "broker 3 is not registered"
    assert (
        why_not_recovered(NOBODY, ALL, logs(b1=ends_at(500), b2=ends_at(1500))) == "broker 3 has not reported its log"
    )
    for wrong in (
        LogReport(50, 7, gone=MISSING),
        LogReport(50, 7, gone=OFFLINE),
        ends_at(0, -1),
        ends_at(500, damaged=True),
        ends_at(500, 4),
    ):
        assert why_not_recovered(NOBODY, ALL, {**all_there, BrokerId(1): wrong})


def test_a_partition_whose_state_names_nobody_is_new_where_no_replica_has_a_log() -> None:
    empty, missing = ends_at(0, -1), LogReport(50, 7, gone=MISSING)
    for found in (logs(b1=empty, b2=empty, b3=empty), logs(b1=missing, b2=empty, b3=missing)):
        assert why_not_recovered(NOBODY, ALL, found) == ""
        assert needs_no_setting(NOBODY, found)
        assert why_not_recovered(NOBODY, live(1, 2), found) == "broker 3 is not registered"
        assert why_not_recovered(NOBODY, ALL, {**found, BrokerId(2): LogReport(50, 7, gone=OFFLINE)})
        assert why_not_recovered(NOBODY, ALL, {**found, BrokerId(2): replace(empty, high_watermark=3)})
    # Of a state that names replicas nothing is taken for new.
    assert not needs_no_setting(leaderless(), logs(b1=empty, b2=empty, b3=empty))


def test_the_only_replica_leads_whatever_it_has_when_its_state_was_deleted() -> None:
    alone = replace(NOBODY, replicas=(BrokerId(1),))
    for report in (ends_at(500), ends_at(500, damaged=True), ends_at(0, -1), LogReport(50, 7, gone=MISSING)):
        assert why_not_recovered(alone, ALL, logs(b1=report)) == ""
        assert needs_no_setting(alone, logs(b1=report))
    assert why_not_recovered(alone, ALL, logs(b1=LogReport(50, 7, gone=OFFLINE)))
    assert why_not_recovered(alone, ALL, {}) == "broker 1 has not reported its log"
