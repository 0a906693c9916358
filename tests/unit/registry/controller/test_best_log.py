"""Which log an unclean election takes, and what is said to be lost, over random histories of logs that part."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.best_log import (
    best_log,
    by_likely_loss,
    lost_records,
    told_log,
    told_losses,
    told_reasons,
    told_remedy,
)
from spark_kafkalite.registry.controller.election import elect
from spark_kafkalite.registry.report_nodes import EMPTY, MAX_EPOCHS, MISSING, OFFLINE, LogReport
from tests.seeds import SEED

CASES = 5000


def live(*numbers: int) -> dict[int, BrokerInfo]:
    return {
        number: BrokerInfo(BrokerId(number), "h", 1, None, BrokerEpoch(1), incarnation=Incarnation(number))
        for number in numbers
    }


def leaderless(
    isr: Iterable[int] = (1, 2, 3), eligible: Iterable[int] = (), replicas: Iterable[int] = (1, 2, 3)
) -> PartitionState:
    """Nobody's log is proven: the state names incarnations of before the power loss."""
    return PartitionState(
        tuple(map(BrokerId, replicas)),
        leader_epoch=LeaderEpoch(9),
        isr=tuple(map(BrokerId, isr)),
        version=7,
        created_zxid=50,
        incarnations={BrokerId(each): Incarnation(each + 100) for each in isr},
        eligible={BrokerId(each): Incarnation(each + 100) for each in eligible},
    )


def ends_at(end_offset: int, last_epoch: int = 5, *, damaged: bool = False) -> LogReport:
    return LogReport(50, 7, last_epoch, end_offset, ((last_epoch, 0),), ((1, 2),) if damaged else ())


def logs(**reports: LogReport) -> dict[BrokerId, LogReport]:
    return {BrokerId(int(name[1:])): report for name, report in reports.items()}


def test_the_log_that_ends_last_under_the_latest_epoch_leads() -> None:
    state, all_live = leaderless(), live(1, 2, 3)
    # The fault of a power loss: the first replica had 500 records, the others 1,500.
    found = logs(b1=ends_at(500), b2=ends_at(1500), b3=ends_at(1500))
    assert best_log(state, all_live, found) == 2
    assert elect(state, all_live, unclean=True, logs=found).leader == 2
    # A later epoch comes before a later end, and a whole log before a damaged one, but an end before that.
    assert best_log(state, all_live, logs(b1=ends_at(9, 6), b2=ends_at(1500), b3=ends_at(1500))) == 1
    assert best_log(state, all_live, logs(b1=ends_at(9, damaged=True), b2=ends_at(9), b3=ends_at(8))) == 2
    assert best_log(state, all_live, logs(b1=ends_at(9, damaged=True), b2=ends_at(8), b3=ends_at(8))) == 1


def test_who_has_nothing_leads_only_where_nobody_may_have_something() -> None:
    state, all_live = leaderless(), live(1, 2, 3)
    nothing = LogReport(50, 7, gone=EMPTY)
    assert best_log(state, all_live, logs(b1=nothing, b2=replace(nothing, gone=MISSING))) == 3
    assert best_log(state, all_live, logs(b1=nothing, b2=nothing, b3=ends_at(1))) == 3
    assert best_log(state, all_live, logs(b1=nothing, b2=nothing, b3=nothing)) == 1
    offline = replace(nothing, gone=OFFLINE)
    assert best_log(state, all_live, logs(b1=offline, b2=nothing, b3=offline)) == 2
    assert best_log(state, all_live, logs(b1=offline, b2=offline, b3=offline)) is None


def test_without_reports_members_of_the_isr_come_first() -> None:
    state = leaderless(isr=(3,), eligible=(2,), replicas=(4, 1, 2, 3))
    assert list(by_likely_loss(state, live(1, 2, 3, 4))) == [3, 2, 4, 1]
    assert best_log(state, live(1, 2, 3, 4), {}) == 3
    assert best_log(state, live(1, 4), {}) == 4
    assert best_log(state, {}, {}) is None
    # A member of the ISR that is no replica any more reports, and cannot lead.
    assert best_log(leaderless(isr=(9,)), live(2, 9), logs(b9=ends_at(10))) == 2


def test_what_is_lost_is_said() -> None:
    state, found = leaderless(), logs(b1=ends_at(500), b2=ends_at(1500), b3=ends_at(1500))
    assert told_losses(state, live(1, 2, 3), found, BrokerId(1)) == ["loses 1,000 records that brokers 2 and 3 have"]
    assert told_losses(state, live(1, 2, 3), found, BrokerId(2)) == []
    del found[BrokerId(3)]
    assert told_losses(state, live(1, 2, 3), found, BrokerId(2)) == ["broker 3 has not reported"]
    assert told_losses(state, live(1, 2), found, BrokerId(2)) == ["broker 3 is not registered"]
    assert told_losses(state, live(1, 2), found, BrokerId(1))[0] == "loses 1,000 records that broker 2 has"
    damaged = logs(b1=ends_at(500), b2=ends_at(1500, damaged=True), b3=ends_at(501))
    assert told_losses(state, live(1, 2, 3), damaged, BrokerId(2)) == [
        "the log of broker 2 is damaged: it lacks offsets 1 to 1"
    ]
    beyond = logs(b1=replace(ends_at(500), high_watermark=600), b2=ends_at(400), b3=ends_at(501))
    assert told_losses(state, live(1, 2, 3), beyond, BrokerId(3)) == [
        "no log has offsets 501 to 599, which were committed: a replica remembers the high watermark 600"
    ]
    beyond = logs(b1=replace(ends_at(500), high_watermark=600), b2=ends_at(400, damaged=True), b3=ends_at(501))
    assert told_losses(state, live(1, 2, 3), beyond, BrokerId(3))[-1].endswith(
        "; files that end in .torn may have them"
    )
    assert told_reasons(state, live(1, 2), logs(b1=ends_at(500))) == [
        "broker 1 (was in sync, has not proven that its log is whole) has a log that ends at 500 under leader epoch 5",
        "broker 2 (was in sync, has not proven that its log is whole) has not reported its log",
        "broker 3 (was in sync) is not registered",
    ]


@dataclass
class Log:
    """A replica's log as a list of the leader epochs that wrote its records, with a number that tells records apart.

    Those before ``start`` were deleted; they stand here so that offsets are places.
    """

    records: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0

    @property
    def present(self) -> list[tuple[int, int]]:
        return self.records[self.start :]

    def report(self) -> LogReport:
        entries: list[tuple[int, int]] = []
        for offset, (epoch, _) in enumerate(self.present, self.start):
            if not entries or entries[-1][0] != epoch:
                entries.append((epoch, offset))
        last = entries[-1][0] if entries else -1
        return LogReport(
            50, 7, last, len(self.records), tuple(entries[-MAX_EPOCHS:]), log_start_offset=min(self.start, self.end)
        )

    @property
    def end(self) -> int:
        return len(self.records)

    def delete(self, before: int) -> None:
        self.start = max(self.start, min(before, self.end))

    def lose_end(self, end: int) -> None:
        del self.records[end:]
        self.start = min(self.start, end)

    def follow(self, leader: Log, until: int) -> None:
        """Be what a follower is that has come so far: equal to its leader up to there."""
        if self.end < leader.start:
            # It begins anew where its leader's log starts.
            self.records, self.start = leader.records[: leader.start], leader.start
        common = 0
        while common < min(len(self.records), len(leader.records)) and self.records[common] == leader.records[common]:
            common += 1
        self.records[common:] = leader.records[common : max(until, common)]
        self.start = min(self.start, common)
        self.delete(leader.start)


def a_history(chance: random.Random, *, deletes: bool = False) -> list[Log]:
    """Three logs after some leaders, each of which wrote, was followed more or less, and lost its end or not.

    ``deletes``: leaders have deleted some of their first records, or all, and followers know it or not.
    """
    replicas = [Log(), Log(), Log()]
    for epoch in range(chance.randrange(1, 9)):
        leader = chance.choice(replicas)
        leader.records += [(epoch, chance.random()) for _ in range(chance.randrange(6))]  # type: ignore[misc]
        for follower in replicas:
            if follower is not leader and chance.random() < 0.5:
                follower.follow(leader, chance.randrange(len(leader.records) + 1))
        if deletes and chance.random() < 0.4:
            before = leader.end if chance.random() < 0.6 else chance.randrange(leader.end + 1)
            for each in replicas:
                if each is leader or (each.records[:before] == leader.records[:before] and chance.random() < 0.7):
                    each.delete(before)
    for each in replicas:
        if chance.random() < 0.3:
            each.lose_end(chance.randrange(len(each.records) + 1))
    return replicas


def test_what_is_said_to_be_lost_is_what_is_lost() -> None:
    chance = random.Random(SEED)
    exact_ones = 0
    for _ in range(CASES):
        one, other, _ = a_history(chance)
        lost, exact = lost_records(one.report(), other.report())
        really = sum(1 for each in other.records if each not in one.records)
        assert lost == really if exact else lost >= really, (one, other)
        exact_ones += exact
    assert exact_ones > CASES / 2


def test_what_was_deleted_is_not_said_to_be_lost() -> None:
    chance = random.Random(SEED)
    exact_ones = 0
    for _ in range(CASES):
        replicas = a_history(chance, deletes=True)
        one, other, _ = replicas
        deleted_below = max(each.start for each in replicas)
        lost, exact = lost_records(one.report(), other.report(), deleted_below)
        really = sum(1 for each in other.records[max(other.start, deleted_below) :] if each not in one.records)
        assert lost == really if exact else lost >= really, (one, other)
        assert lost <= max(other.end - deleted_below, 0)
        exact_ones += exact
    assert exact_ones > CASES / 2


def test_a_log_of_which_everything_was_deleted_has_nothing_to_lose() -> None:
    state, all_live = leaderless(), live(1, 2, 3)
    emptied = LogReport(50, 7, -1, 580, high_watermark=580, log_start_offset=580)
    assert told_log(emptied) == "has a log without records that starts and ends at 580"
    # Of an earlier version's report nobody knows that it is empty.
    found = logs(b1=replace(emptied, log_start_offset=-1), b2=ends_at(580), b3=ends_at(580))
    assert told_losses(state, all_live, found, BrokerId(2)) == ["loses up to 580 records that broker 1 has"]
    found = logs(b1=emptied, b2=ends_at(580), b3=ends_at(600))
    assert told_losses(state, all_live, found, BrokerId(3)) == []
    # What broker 2 has was deleted; of broker 3 it is known what is behind that.
    assert told_losses(state, all_live, found, BrokerId(1)) == ["loses 20 records that broker 3 has"]
    found = logs(b1=emptied, b2=ends_at(500), b3=ends_at(500))
    assert told_losses(state, all_live, found, BrokerId(1)) == []
    assert told_losses(state, all_live, found, BrokerId(2)) == [
        "new records get offsets 500 to 579 again, which were deleted"
    ]


def test_no_replica_has_more_of_the_latest_leader_than_the_one_that_is_taken() -> None:
    chance = random.Random(SEED)
    for _ in range(CASES):
        replicas = a_history(chance)
        found = {BrokerId(number): each.report() for number, each in enumerate(replicas, 1)}
        if chance.random() < 0.3:
            del found[chance.choice(list(found))]
        state = leaderless(isr=chance.sample((1, 2, 3), chance.randrange(1, 4)))
        taken = best_log(state, live(1, 2, 3), found)
        assert taken is not None
        with_records = [each for each in found if replicas[each - 1].records]
        if not with_records:
            # One that has not reported may have something.
            assert taken not in found or len(found) == 3
            continue
        latest = max(replicas[each - 1].records[-1][0] for each in with_records)
        best = replicas[taken - 1].records
        for each in with_records:
            assert sum(epoch == latest for epoch, _ in replicas[each - 1].records) <= sum(
                epoch == latest for epoch, _ in best
            )
        # Whoever shares its last leader with the one that is taken loses nothing.
        for each in with_records:
            if replicas[each - 1].records[-1][0] == latest:
                assert lost_records(found[taken], found[each]) == (0, True)


def test_of_a_state_that_names_nobody_it_is_said_which_replicas_are_away() -> None:
    nobody = leaderless(isr=())
    assert told_reasons(nobody, live(1, 2), logs(b1=ends_at(500)))[::2] == [
        "broker 1 (unknown whether it was in sync: the partition's registry node was missing) has a log that ends "
        "at 500 under leader epoch 5",
        "broker 3 (unknown whether it was in sync: the partition's registry node was missing) is not registered",
    ]
    remedy = "start broker 3; where it is lost for good: kafkalite cluster elect --unclean t:0"
    assert told_remedy(TopicPartition("t", 0), nobody, live(1, 2)) == remedy
