import pytest

from spark_kafkalite.model import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.election import Elected, elect, needs_election


def live(**epochs: int) -> dict[int, BrokerInfo]:
    """b1=5 is broker 1, registered by transaction 5."""
    return {
        int(name[1:]): BrokerInfo(BrokerId(int(name[1:])), "h", 1, None, BrokerEpoch(epoch))
        for name, epoch in epochs.items()
    }


def state(leader: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3), zxid: int = 100) -> PartitionState:
    return PartitionState(
        tuple(map(BrokerId, replicas)),
        BrokerId(leader),
        LeaderEpoch(3),
        tuple(map(BrokerId, isr)),
        ControllerEpoch(1),
        version=7,
        modified_zxid=zxid,
    )


@pytest.mark.parametrize(
    ("partition", "brokers", "expected"),
    [
        (state(1, (1, 2, 3)), live(b2=5, b3=6), Elected(BrokerId(2), (2, 3))),
        (state(1, (3, 1, 2)), live(b2=5, b3=6), Elected(BrokerId(2), (2, 3))),
        # Broker 2 is live but fell out of the ISR: broker 3 leads.
        (state(1, (1, 3)), live(b2=5, b3=6), Elected(BrokerId(3), (3,))),
        # The leader has restarted (registered after the state was written): whoever lived on leads without it.
        (state(1, (1, 2)), live(b1=150, b2=5), Elected(BrokerId(2), (2,))),
        # Everybody has restarted: the old leader leads, alone.
        (state(2, (1, 2)), live(b1=150, b2=151), Elected(BrokerId(2), (2,))),
        (state(3, (1, 2, 3)), live(b1=150, b2=151), Elected(BrokerId(1), (1,))),
        (state(1, (1,), (1,)), live(b1=150), Elected(BrokerId(1), (1,))),
        # Nobody of the ISR is live: the ISR is kept, so that one of exactly these leads next.
        (state(1, (1, 2)), live(b3=5), Elected(BrokerId(-1), (1, 2))),
        (state(-1, (1, 2)), live(b2=150), Elected(BrokerId(2), (2,))),
    ],
)
def test_the_table(partition: PartitionState, brokers: dict[int, BrokerInfo], expected: Elected) -> None:
    assert elect(partition, brokers) == expected


def test_unclean_election_takes_a_live_replica_only_when_allowed() -> None:
    partition, brokers = state(1, (1,)), live(b3=5)
    assert elect(partition, brokers).leader == -1
    assert elect(partition, brokers, unclean=True) == Elected(BrokerId(3), (BrokerId(3),))


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    partition = PartitionState((BrokerId(3), BrokerId(1), BrokerId(2)))
    assert elect(partition, live(b1=5, b2=6)) == Elected(BrokerId(1), (BrokerId(1), BrokerId(2)))


def test_needs_election() -> None:
    assert needs_election(PartitionState((BrokerId(1),)), live(b1=5))
    assert needs_election(state(1, (1,)), live(b2=5))
    assert needs_election(state(1, (1,)), live(b1=150))
    assert not needs_election(state(1, (1,)), live(b1=5))
