"""Partition states and broker registrations in the registry's form, for tests that replace the registry."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState


def live_broker(number: int, incarnation: int | None = None, *steady: int) -> BrokerInfo:
    """Return a registered broker. The default incarnation of broker N is N * 10.

    ``steady`` are the broker's earlier incarnations whose logs it still has.
    """
    which = number * 10 if incarnation is None else incarnation
    return BrokerInfo(
        BrokerId(number),
        "localhost",
        9092,
        None,
        BrokerEpoch(which),
        incarnation=Incarnation(which),
        steady=tuple(map(Incarnation, steady)),
    )


def incarnations_of(*brokers: int, **others: int) -> dict[BrokerId, Incarnation]:
    """Return the incarnations of these brokers in a partition state: N * 10, except those given (``b2=21``)."""
    named = {int(name[1:]): value for name, value in others.items()}
    return {BrokerId(each): Incarnation(named.get(each, each * 10)) for each in brokers}


def partition_state(
    *isr: int,
    replicas: tuple[int, ...] = (1, 2, 3),
    leader: int = 1,
    epoch: int = 0,
    version: int = 0,
    incarnations: Mapping[BrokerId, Incarnation] | None = None,
    eligible: Mapping[BrokerId, Incarnation] | None = None,
    created_zxid: int = -1,
    replicas_zxid: int = -1,
) -> PartitionState:
    """Return the state of a partition with this ISR. The default incarnations are those of :func:`incarnations_of`."""
    return PartitionState(
        replicas=tuple(map(BrokerId, replicas)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(map(BrokerId, isr)),
        version=version,
        incarnations=incarnations_of(*isr) if incarnations is None else incarnations,
        eligible=eligible or {},
        created_zxid=created_zxid,
        replicas_zxid=replicas_zxid,
    )
