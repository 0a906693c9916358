from dataclasses import replace

import pytest

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerEpoch, BrokerId, ControllerEpoch, Incarnation, LeaderEpoch
from spark_kafkalite.registry.accepted_damage import AcceptedDamage
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.election import (
    Elected,
    elect,
    elect_preferred,
    kept_acceptance,
    kept_eligible,
    may_lose,
    needs_election,
    next_epoch,
    state_that_names_nobody,
    why_leaderless,
)
from spark_kafkalite.registry.report_nodes import OFFLINE, LogReport
from spark_kafkalite.registry.znodes import MAX_EPOCH
from tests.lab.partition_states import incarnations_of, live_broker, partition_state

Named = dict[BrokerId, Incarnation]


def live(**runs: tuple[int, ...]) -> dict[int, BrokerInfo]:
    """b1=(12, 11) is broker 1 in incarnation 12, which has proven to have the logs of incarnation 11."""
    brokers = {}
    for name, (incarnation, *steady) in runs.items():
        number = int(name[1:])
        brokers[number] = BrokerInfo(
            BrokerId(number),
            "h",
            1,
            None,
            BrokerEpoch(1),
            incarnation=Incarnation(incarnation),
            steady=tuple(map(Incarnation, steady)),
        )
    return brokers


def named(incarnations: dict[int, int]) -> Named:
    return {BrokerId(broker): Incarnation(incarnation) for broker, incarnation in incarnations.items()}


def state(
    leader: int, isr: dict[int, int], replicas: tuple[int, ...] = (1, 2, 3), eligible: dict[int, int] | None = None
) -> PartitionState:
    """The members of the ISR, and eligible ones, with their incarnations; -1 is not written."""
    return PartitionState(
        tuple(map(BrokerId, replicas)),
        BrokerId(leader),
        LeaderEpoch(3),
        tuple(map(BrokerId, isr)),
        ControllerEpoch(1),
        version=7,
        modified_zxid=100,
        incarnations={broker: each for broker, each in named(isr).items() if each != UNKNOWN_INCARNATION},
        eligible=named(eligible or {}),
    )


def elected(leader: int, isr: dict[int, int], eligible: dict[int, int] | None = None) -> Elected:
    return Elected(BrokerId(leader), tuple(map(BrokerId, isr)), named(isr), named(eligible or {}))


NOBODY = -1


@pytest.mark.parametrize(
    ("partition", "brokers", "expected"),
    [
        (state(1, {1: 11, 2: 21, 3: 31}), live(b2=(21,), b3=(31,)), elected(2, {2: 21, 3: 31})),
        # The order is that of the replicas, not that of the ISR.
        (state(1, {3: 31, 1: 11, 2: 21}), live(b2=(21,), b3=(31,)), elected(2, {2: 21, 3: 31})),
        # Broker 2 is live but not in the ISR.
        (state(1, {1: 11, 3: 31}), live(b2=(21,), b3=(31,)), elected(3, {3: 31})),
        # The leader runs again, and nobody knows what its log has lost: it comes back by fetching.
        (state(1, {1: 11, 2: 21}), live(b1=(12,), b2=(21,)), elected(2, {2: 21})),
        # It runs again and has proven its log: it stays in sync, and is elected if no other has run on.
        (state(1, {1: 11, 2: 21}), live(b1=(12, 11), b2=(21,)), elected(2, {2: 21, 1: 12})),
        (state(1, {1: 11, 2: 21}), live(b1=(12, 11), b2=(22, 21)), elected(1, {1: 12, 2: 22})),
        (state(-1, {1: 11, 2: 21}), live(b2=(23, 22, 21)), elected(2, {2: 23})),
        # Row 32: an empty disk, alone in the ISR or not, truncates nobody.
        (state(1, {1: 11}), live(b1=(12,), b2=(21,), b3=(31,)), None),
        (state(1, {1: 11, 2: 21}), live(b1=(12,), b2=(22,), b3=(31,)), None),
        # The only replica goes on, whatever became of its log; also in a state of an earlier version.
        (state(1, {1: 11}, (1,)), live(b1=(12,)), elected(1, {1: 12})),
        (state(1, {1: -1}, (1,)), live(b1=(12,)), elected(1, {1: 12})),
        # With others it proves nothing that a state names no incarnations.
        (state(1, {1: -1, 2: -1}, (1, 2)), live(b1=(12,), b2=(22,)), None),
        # A replica list that was changed by hand: broker 2 has never had the log.
        (state(1, {1: 11}, (2,)), live(b1=(11,), b2=(21,)), None),
        (state(1, {1: 11, 2: 21}, (2, 3)), live(b1=(11,), b2=(21,), b3=(31,)), elected(2, {2: 21})),
        # Nobody of the ISR is live: it is kept, so that one of exactly these leads next.
        (state(1, {1: 11, 2: 21}), live(b3=(31,)), None),
        # A broker that names no incarnation leads nothing, not even alone.
        (state(1, {1: -1}, (1,)), live(b1=(-1,)), None),
        # Rule R16: who has left an ISR that was too small may lead, but not before those in it.
        (state(1, {1: 11}, eligible={2: 21}), live(b1=(12,), b2=(22, 21)), elected(2, {2: 22})),
        (state(1, {1: 11}, eligible={2: 21}), live(b1=(12, 11), b2=(22, 21)), elected(1, {1: 12})),
        (state(1, {1: 11}, eligible={2: 21}), live(b1=(12,), b2=(22,)), None),
    ],
)
def test_the_table(partition: PartitionState, brokers: dict[int, BrokerInfo], expected: Elected | None) -> None:
    kept = Elected(BrokerId(NOBODY), partition.isr, partition.incarnations, partition.eligible)
    assert elect(partition, brokers) == (expected or kept)


@pytest.mark.parametrize(
    ("partition", "brokers", "expected"),
    [
        # Two are too few: who leaves now has all that is acknowledged. One that is here without its log has not.
        (state(1, {1: 11, 2: 21, 3: 31}), live(b2=(21,)), elected(2, {2: 21}, {1: 11, 3: 31})),
        (state(1, {1: 11, 2: 21, 3: 31}), live(b1=(12,), b2=(21,)), elected(2, {2: 21}, {3: 31})),
        # Two are enough.
        (state(1, {1: 11, 2: 21, 3: 31}), live(b2=(21,), b3=(31,)), elected(2, {2: 21, 3: 31})),
        # Those of before are kept, by their present names, and are forgotten when there are enough.
        (state(1, {1: 11}, eligible={2: 21, 3: 31}), live(b2=(22, 21)), elected(2, {2: 22}, {1: 11, 3: 31})),
        (state(1, {1: 11}, eligible={3: 31}), live(b1=(12, 11), b3=(32, 31)), elected(1, {1: 12}, {3: 32})),
        (state(1, {1: 11, 2: 21}, eligible={3: 31}), live(b1=(12, 11), b2=(21,)), elected(2, {2: 21, 1: 12})),
        # One that nobody can name is nobody's.
        (state(1, {1: -1, 2: 21}), live(b2=(21,)), elected(2, {2: 21})),
        # A partition of one replica needs no more than one.
        (state(1, {1: 11}, (1,)), live(b1=(12, 11)), elected(1, {1: 12})),
    ],
)
def test_who_leaves_too_small_an_isr_stays_eligible(
    partition: PartitionState, brokers: dict[int, BrokerInfo], expected: Elected
) -> None:
    assert elect(partition, brokers, min_insync=2) == expected


def test_nobody_is_eligible_where_the_high_watermark_does_not_wait() -> None:
    assert elect(state(1, {1: 11, 2: 21}, eligible={3: 31}), live(b2=(21,))) == elected(2, {2: 21})


def test_an_unclean_election_takes_whoever_has_lost_least() -> None:
    partition = state(1, {1: 11}, eligible={3: 31})
    everybody = live(b1=(12,), b2=(22,), b3=(32,))
    assert elect(partition, everybody, min_insync=2).leader == NOBODY
    for brokers, leader in ((everybody, 1), (live(b2=(22,), b3=(32,)), 3), (live(b2=(22,)), 2)):
        expected = elected(leader, {leader: brokers[leader].incarnation})
        assert elect(partition, brokers, min_insync=2, unclean=True) == expected
    assert elect(partition, {}, unclean=True).leader == NOBODY
    # Nothing is lost without need.
    assert elect(partition, live(b2=(22,), b3=(33, 31)), unclean=True) == elected(3, {3: 33})


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    partition = PartitionState((BrokerId(3), BrokerId(1), BrokerId(2)))
    assert elect(partition, live(b1=(11,), b2=(21,))) == elected(1, {1: 11, 2: 21})
    assert elect(partition, live(b3=(-1,), b2=(21,))) == elected(2, {2: 21})
    # Nobody is named in sync who has never had the log under a name.
    assert elect(partition, {}) == Elected(BrokerId(NOBODY), (), {}, {})


def test_the_preferred_leader_takes_over_only_from_within_the_isr() -> None:
    partition = state(2, {2: 21, 1: 11, 3: 31})
    assert elect_preferred(partition, live(b1=(11,), b2=(21,))) == elected(1, {1: 11, 2: 21})
    assert elect_preferred(partition, live(b1=(11,)), min_insync=2) == elected(1, {1: 11}, {2: 21, 3: 31})
    assert elect_preferred(partition, live(b1=(12,), b2=(21,))) is None
    assert elect_preferred(partition, live(b2=(21,))) is None
    assert elect_preferred(state(2, {2: 21}, eligible={1: 11}), live(b1=(11,), b2=(21,))) is None


def test_needs_election() -> None:
    led = state(1, {1: 11, 2: 21})
    assert needs_election(PartitionState((BrokerId(1),)), live(b1=(11,)))
    assert not needs_election(led, live(b1=(11,)))
    # It may lead again, under a higher epoch.
    assert needs_election(led, live(b1=(12, 11)))
    assert not needs_election(state(1, {1: 11}, (1,)), live(b1=(12, 11)))
    # Dead; another run; given back; no replica any more; named by nobody.
    assert needs_election(led, live(b2=(21,)))
    assert needs_election(led, live(b1=(12,)))
    assert needs_election(replace(led, leader=BrokerId(-1)), live(b1=(11,)))
    assert needs_election(replace(led, replicas=(BrokerId(2),)), live(b1=(11,)))
    assert needs_election(state(1, {1: -1}), live(b1=(11,)))
    # Somebody has to repair these first.
    assert not needs_election(replace(led, unreadable=True), {})
    assert not needs_election(replace(led, leader_epoch=LeaderEpoch(MAX_EPOCH)), {})


def test_an_election_leaves_nothing_to_elect() -> None:
    """Whoever is elected leads in that state; else the controller would elect for ever."""
    brokers = live(b1=(12,), b2=(22, 21))
    for before in (state(1, {1: 11}, (1,)), state(1, {1: 11, 2: 21}), PartitionState((BrokerId(2), BrokerId(1)))):
        node = elect(before, brokers).as_node(before.leader_epoch + 1, ControllerEpoch(4))
        after = replace(
            before, leader=node.leader, leader_epoch=node.leader_epoch, isr=node.isr, incarnations=node.incarnations
        )
        assert not needs_election(replace(after, version=8), brokers)


def test_why_nobody_leads_is_said() -> None:
    partition = state(-1, {1: 11, 2: 21}, eligible={3: 31})
    assert why_leaderless(partition, live(b1=(12,), b3=(-1,))) == (
        "broker 1 has not proven that its log is whole, broker 2 is not registered, "
        "broker 3 has registered without an incarnation"
    )
    assert why_leaderless(state(-1, {1: 11}, (2,)), {}) == "none of its replicas was in sync"


def test_kept_eligible() -> None:
    everybody = tuple(map(BrokerId, (1, 2, 3)))
    one, two = named({1: 11}), named({2: 21})
    assert kept_eligible(one, two, everybody[2:], everybody, 2) == {**one, **two}
    assert kept_eligible(one, two, everybody[2:], everybody, 1) == {}
    # Somebody who is in sync again, is no replica any more, or has no name.
    assert kept_eligible({**one, **two}, named({3: -1}), everybody[1:2], everybody[1:], 2) == {}


def test_accepted_damage_is_of_one_log() -> None:
    """It stays while nobody leads and with the log that was meant, and goes when any other one leads."""
    state = replace(partition_state(1, leader=-1), accepted_damage=AcceptedDamage(Incarnation(10), ((5, 9),)))
    live = {1: live_broker(1, 11, 10), 2: live_broker(2), 3: live_broker(3)}
    assert kept_acceptance(state, BrokerId(-1), live) == state.accepted_damage
    assert kept_acceptance(state, BrokerId(1), live) == state.accepted_damage
    assert kept_acceptance(state, BrokerId(2), live) is None
    # Broker 1 with a log that it has not proven to be that one, or with an empty disk.
    assert kept_acceptance(state, BrokerId(1), {1: live_broker(1, 11)}) is None
    assert kept_acceptance(partition_state(1), BrokerId(1), live) is None


def test_only_an_election_of_a_log_that_the_state_does_not_mean_may_lose_records() -> None:
    before = partition_state(1, eligible=incarnations_of(2), leader=-1)
    live = {1: live_broker(1, 11, 10), 2: live_broker(2), 3: live_broker(3)}
    assert [may_lose(before, BrokerId(each), live) for each in (-1, 1, 2, 3)] == [False, False, False, True]
    assert may_lose(before, BrokerId(1), {1: live_broker(1, 11)}), "it has not proven its log"
    alone = partition_state(1, replicas=(1,))
    assert not may_lose(alone, BrokerId(1), {1: live_broker(1, 11)}), "no other replica has anything"


def test_after_a_state_that_names_nobody_the_epoch_is_above_that_of_every_log() -> None:
    nobody = PartitionState((BrokerId(1), BrokerId(2)), leader_epoch=LeaderEpoch(3), version=0)
    assert nobody.names_nobody
    one, other = LogReport(5, 0, last_epoch=8), LogReport(5, 0, last_epoch=4, leader_epoch=9)
    assert next_epoch(nobody, {BrokerId(1): one, BrokerId(2): other}) == 10
    assert next_epoch(replace(nobody, leader_epoch=LeaderEpoch(20)), {BrokerId(1): one, BrokerId(2): other}) == 21
    # The other one may have led under epochs that nobody else has heard of.
    assert next_epoch(nobody, {BrokerId(1): one}) > 100
    assert next_epoch(nobody, {BrokerId(1): one, BrokerId(2): replace(other, gone=OFFLINE)}) > 100
    # A state that names somebody knows them all.
    assert next_epoch(state(-1, {1: 11}), {}) == 4
    assert next_epoch(replace(nobody, leader_epoch=LeaderEpoch(MAX_EPOCH - 1)), {}) == MAX_EPOCH


def test_a_state_that_was_deleted_is_made_again_with_what_it_had_except_who_was_in_sync() -> None:
    accepted = AcceptedDamage(Incarnation(11), ((1, 2),))
    before = replace(state(1, {1: 11, 2: 21}), accepted_damage=accepted, unknown={"newer": 1})
    gone = PartitionState.without_node(before.replicas, 90, before.node)
    made = state_that_names_nobody(gone, ControllerEpoch(5))
    assert (made.leader, made.isr, made.eligible, made.incarnations) == (-1, (), {}, {})
    assert (made.leader_epoch, made.controller_epoch) == (3, 5)
    assert (made.accepted_damage, made.unknown) == (accepted, {"newer": 1})
    assert replace(made, version=0).names_nobody
    # Nothing of it was ever seen here.
    assert (
        state_that_names_nobody(PartitionState.without_node(before.replicas, 90), ControllerEpoch(5)).leader_epoch == 0
    )
