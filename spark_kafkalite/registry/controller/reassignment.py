"""What a reassignment writes next. Pure: a partition, its targets and the live brokers in, the next partition out.

A reassignment (KIP-455) makes other brokers the replicas of a partition. It is in the registry alone: the topic node
has all replicas, those of them that come (``adding``) and those that go (``removing``). So it goes on under any
controller. The *targets* are the replicas that stay; the *origin* are those that are not being added. The rules, as
docs/replication.md numbers them:

- **V1** A reassignment begins by adding. It ends when all targets are in the ISR, by that very version of the state.
  Until then no replica of the origin leaves.
- **V2** A write that takes replicas away leaves a leader, and as many live members of the ISR with whole logs as a
  commit takes afterwards. A cancellation, or another reassignment, that cannot leave these is refused; the end of a
  reassignment waits.
- **V3** A write that takes replicas away raises the leader epoch, and takes them out of the ISR and out of the eligible
  replicas. It is one step with the write of the topic node. No fetch or write of the former epoch brings them back.
- **V5** The state names the replicas that it has taken away (``PartitionState.removed``), because brokers read the
  topic node apart from it.

Source: kafka.controller.KafkaController of Apache Kafka 3.9 for the replicas; V2 and V5 are not Kafka's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from spark_kafkalite.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    UnsupportedVersion,
)
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, ControllerEpoch, LeaderEpoch
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.election import kept_acceptance
from spark_kafkalite.registry.znodes import NO_LEADER, REASSIGNS_FROM_INNER_WIRE_VERSION

Live = Mapping[int, BrokerInfo]


def origin_of(state: PartitionState) -> tuple[BrokerId, ...]:
    """Return the replicas that the partition has without those that a reassignment is adding."""
    return tuple(each for each in state.all_listed if each not in state.adding)


def targets_of(state: PartitionState) -> tuple[BrokerId, ...]:
    """Return the replicas that the partition is to have in the end."""
    return tuple(each for each in state.all_listed if each not in state.removing)


def check_targets(
    state: PartitionState, targets: Sequence[int], live: Live, *, allows_other_factor: bool = True
) -> tuple[BrokerId, ...]:
    """Return the brokers that a request wants as replicas, in this order.

    Raises UnsupportedVersion (35) while a broker of an older version is live, which does not know V5 and V7;
    InvalidReplicaAssignment (39); InvalidReplicationFactor (38) unless ``allows_other_factor``.
    """
    if not targets:
        raise InvalidReplicaAssignment("the list of replicas is empty; name at least one broker")
    if len(set(targets)) < len(targets):
        raise InvalidReplicaAssignment(f"the list of replicas {list(targets)} names a broker twice")
    origin = origin_of(state)
    dead = [each for each in targets if each not in origin and each not in live]
    if dead:
        named = ", ".join(map(str, dead))
        raise InvalidReplicaAssignment(
            f"the list of replicas {list(targets)} names broker {named}, which is not live: start it, or name another"
        )
    older = sorted(each for each in live if live[each].inner_wire_version < REASSIGNS_FROM_INNER_WIRE_VERSION)
    if older:
        raise UnsupportedVersion(
            f"broker {', '.join(map(str, older))} has an older version, which knows no reassignments: upgrade all "
            "brokers first"
        )
    if len(targets) != len(origin) and not allows_other_factor:
        raise InvalidReplicationFactor(
            f"the replication factor would change from {len(origin)} to {len(targets)}, which the request does not "
            "allow (allow.replication.factor.change)"
        )
    return tuple(map(BrokerId, targets))


def begun(
    state: PartitionState, targets: tuple[BrokerId, ...], live: Live, min_insync: int, epoch: ControllerEpoch
) -> PartitionState | None:
    """Return the partition once its reassignment to ``targets`` has begun, also in the place of another one; None where
    nothing is to be written.

    Raises InvalidReplicaAssignment (39) if replicas that the former reassignment was adding cannot be taken away (V2).
    """
    origin = origin_of(state)
    listed = (*targets, *(each for each in origin if each not in targets))
    after = replace(
        state,
        replicas=listed,
        listed=(),
        adding=tuple(each for each in targets if each not in origin),
        removing=tuple(each for each in origin if each not in targets),
        removed=tuple(each for each in state.removed if each not in listed),
    )
    dropped = [each for each in state.all_listed if each not in listed]
    if dropped:
        return without(after, dropped, live, min_insync, epoch)
    same = (after.replicas, after.adding, after.removing, after.removed)
    return None if same == (state.all_listed, state.adding, state.removing, state.removed) else after


def cancelled(state: PartitionState, live: Live, min_insync: int, epoch: ControllerEpoch) -> PartitionState:
    """Return the partition once its reassignment has been cancelled: it has the replicas of the origin.

    Raises NoReassignmentInProgress (85); InvalidReplicaAssignment (39) where the origin cannot go on alone (V2).
    """
    if not state.is_moving:
        raise NoReassignmentInProgress("no reassignment of the partition is in progress")
    origin = origin_of(state)
    after = replace(state, replicas=origin, listed=(), adding=(), removing=())
    return without(after, state.adding, live, min_insync, epoch) if state.adding else after


def ended(state: PartitionState, live: Live, min_insync: int, epoch: ControllerEpoch) -> PartitionState | None:
    """Return the partition once its reassignment has ended; None while it cannot end."""
    targets = targets_of(state)
    if not state.is_moving or not state.has_state or not all_in_sync(state, targets):
        return None
    after = replace(state, replicas=targets, listed=(), adding=(), removing=())
    try:
        if state.removing:
            return without(after, state.removing, live, min_insync, epoch)
        check_enough(after, live, min_insync)
    except InvalidReplicaAssignment:
        return None
    return after


def all_in_sync(state: PartitionState, targets: Collection[BrokerId]) -> bool:
    """Whether each of the targets is in the ISR (V1)."""
    return bool(targets) and all(each in state.isr for each in targets)


def without(
    after: PartitionState, gone: Collection[BrokerId], live: Live, min_insync: int, epoch: ControllerEpoch
) -> PartitionState:
    """Return the partition, which has its next replicas already, with its state without those that are gone.

    Raises InvalidReplicaAssignment (39) where these replicas cannot go on alone (V2).
    """
    whole = check_enough(after, live, min_insync)
    if after.leader in whole:
        leader, isr = after.leader, tuple(each for each in after.isr if each in after.replicas)
        incarnations = {broker: which for broker, which in after.incarnations.items() if broker in isr}
    else:
        # As an election: those that are dead, or have another log, come back by fetching.
        leader, isr = whole[0], whole
        incarnations = {each: live[each].incarnation for each in isr}
    return replace(
        after,
        leader=leader,
        leader_epoch=LeaderEpoch(after.leader_epoch + 1),
        controller_epoch=epoch,
        isr=isr,
        incarnations=incarnations,
        eligible={},
        accepted_damage=kept_acceptance(after, leader, live),
        removed=tuple(dict.fromkeys((*after.removed, *gone))),
    )


def check_enough(after: PartitionState, live: Live, min_insync: int) -> tuple[BrokerId, ...]:
    """Return the replicas that may lead, in order, if they are as many as a commit takes (V2); ``after`` has the next
    replicas, and the ISR as it is.

    Raises InvalidReplicaAssignment (39).
    """
    if not after.has_state or after.unreadable or after.epochs_are_used_up:
        raise InvalidReplicaAssignment("its state in the registry is missing or cannot be read; repair that first")
    whole = tuple(each for each in after.replicas if each in after.isr and _is_whole(after, each, live))
    needed = max(1, min(min_insync, after.settled_count))
    if len(whole) < needed or NO_LEADER in whole:
        left = ", ".join(map(str, after.replicas))
        in_sync = ", ".join(map(str, whole)) or "none"
        raise InvalidReplicaAssignment(
            f"of brokers {left}, which would be left, {in_sync} is live and in sync, and a commit takes {needed}: "
            "acknowledged records could be lost. Wait until more of them are in sync"
        )
    return whole


def _is_whole(state: PartitionState, broker: BrokerId, live: Live) -> bool:
    info = live.get(broker)
    return info is not None and info.has_log_of(state.incarnations.get(broker, UNKNOWN_INCARNATION))
