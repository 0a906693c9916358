"""Brokers without one of the rules R1-R24 of docs/replication.md, to see that the simulator would notice.
``without_moves`` has those of reassignments.

Each takes away what keeps the rule, in this process and for as long as the context lasts. R9 has none: that nobody
waits for brokers is seen by no schedule.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from spark_kafkalite.broker.replication import follower_logs
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.hosted_logs import HostedLogs
from spark_kafkalite.broker.replication.isr_changes import IsrWrites
from spark_kafkalite.broker.replication.isr_leaving import IsrLeaves
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.leadership_confirmation import Confirmation
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.following import OwnState
from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.replication.rules.rereads import Rereads
from spark_kafkalite.broker.requests.fetch_sessions import FetchSession
from spark_kafkalite.broker.requests.handlers.produce import DelayedProduce
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.log.directories import runs
from spark_kafkalite.log.identity import LogIdentity
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import state_nodes
from spark_kafkalite.registry.cluster.cluster_state import NO_ORDER, BrokerInfo, PartitionState
from spark_kafkalite.registry.controller import election, last_resorts
from spark_kafkalite.registry.controller.best_log import best_log
from spark_kafkalite.registry.controller.controller import Controller
from spark_kafkalite.registry.controller.elections import Elections
from tests.simulator.without_moves import MOVE_RULES

Patch = contextlib.AbstractContextManager[Any]
_LOOKS_AGAIN_S: Final = 0.02


def _wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Have ``wrapper`` called in place of a method, with what it was first."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **named: wrapper(original, *args, **named))


def _whoever_is_named_leads() -> Iterator[Patch]:
    def is_led_by(state: PartitionState, broker: BrokerInfo) -> bool:
        return state.leader == broker.broker_id and state.leader in state.replicas

    yield mock.patch.object(PartitionState, "is_led_by", is_led_by)


def _older_states_apply() -> Iterator[Patch]:
    def take_state(original: Any, in_sync: Any, state: Any, now_s: float) -> None:
        if state.order < in_sync.state.order:
            in_sync._adopt(state, now_s)
        else:
            original(in_sync, state, now_s)

    def become_leader(original: Any, partition: Any, state: Any) -> None:
        if state.order < partition.state_order:
            partition.state_order = NO_ORDER
            if state.leader_epoch < partition.leader_epoch:
                partition.leader_epoch = -1
        original(partition, state)

    yield _wrapped(InSyncReplicas, "take_state", take_state)
    yield _wrapped(Partition, "become_leader", become_leader)


def _any_epoch_is_served() -> Iterator[Patch]:
    yield _wrapped(Partition, "check_leader", lambda original, partition, _=-1: original(partition))


def _who_is_to_leave_counts_no_more() -> Iterator[Patch]:
    def recount(original: Any, in_sync: Any) -> None:
        original(in_sync)
        if in_sync.change is not None:
            staying = in_sync.change.after.isr
            in_sync._counted = [in_sync._followers[each] for each in staying if each != in_sync._me]

    yield _wrapped(InSyncReplicas, "_recount", recount)


def _unknown_outcomes_are_forgotten() -> Iterator[Patch]:
    def failed(original: Any, isr_writes: Any, writes: Any, error: Exception) -> bool:
        for each in writes if isinstance(error, RegistryError) else ():
            each.in_sync.change = None
            each.in_sync._recount()
        return bool(original(isr_writes, writes, error)) and not isinstance(error, RegistryError)

    yield _wrapped(IsrWrites, "failed", failed)
    # The recorded schedule shows it by followers that their leader forgets, and would hear of again by this.
    yield mock.patch.object(FetchSession, "name_again", lambda session: None)


def _leases_have_no_end() -> Iterator[Patch]:
    yield mock.patch.object(RegistryLease, "holds", lambda lease, _: lease.end_s > 0)


def _fetches_name_no_incarnation() -> Iterator[Patch]:
    def follower_fetched(original: Any, leader: Any, replica_id: Any, incarnation: Any, *others: Any) -> None:
        named = leader.in_sync.state.incarnations.get(replica_id, incarnation)
        original(leader, replica_id, named, *others)

    yield _wrapped(Leader, "follower_fetched", follower_fetched)


def _who_restarts_stays() -> Iterator[Patch]:
    def staying(in_sync: Any, now_s: float, lag_max_s: float) -> dict[Any, Any]:
        live = in_sync._live()
        return {
            broker: live[broker].incarnation
            for broker in in_sync.state.isr
            if broker in live and (broker == in_sync._me or not in_sync._is_slow(broker, now_s, lag_max_s))
        }

    yield mock.patch.object(InSyncReplicas, "_staying", staying)


def _logs_are_known_by_name() -> Iterator[Patch]:
    def open_log(original: Any, hosted: Any, topic_partition: Any, topic_id: bytes, *rest: Any) -> Any:
        log = hosted._logs.get(topic_partition)
        if log is not None:
            log.topic_id = topic_id
        return original(hosted, topic_partition, topic_id, *rest)

    yield _wrapped(HostedLogs, "open", open_log)


def _members_are_brokers() -> Iterator[Patch]:
    yield mock.patch.object(BrokerInfo, "has_log_of", lambda *_: True)


def _every_log_is_proven() -> Iterator[Patch]:
    def proven(found: Any, *_: Any, **__: Any) -> Any:
        return tuple(each for run in found.values() if run is not None for each in (run.incarnation, *run.proven))

    yield mock.patch.object(runs, "proven_runs", proven)


def _the_controller_looks_once() -> Iterator[Patch]:
    async def run(original: Any, elections: Any, state: Any) -> None:
        try:
            await original(elections, state)
        except BaseException:
            elections._check_all = False
            raise

    def look_at_everything(original: Any, elections: Any) -> None:
        if not hasattr(elections, "_has_looked"):
            elections._has_looked = True
            original(elections)

    yield _wrapped(Elections, "run", run)
    yield _wrapped(Elections, "look_at_everything", look_at_everything)
    yield mock.patch.object(Controller, "resume", lambda _: None)


def _states_are_written_unguarded() -> Iterator[Patch]:
    yield mock.patch.object(state_nodes, "topic_guard_path", lambda _: znodes.TOPICS)


def _waits_look_at_offsets_alone() -> Iterator[Patch]:
    def end(original: Any, leader: Any, reason: Any) -> None:
        waiting = dict(leader.ack_waiters.operations)
        original(leader, reason)
        leader.end_reason = None
        leader.ack_waiters.operations = waiting
        loop = asyncio.get_running_loop()

        def look_again() -> None:
            if leader.ack_waiters.operations:
                leader.ack_waiters.wake()
                loop.call_later(_LOOKS_AGAIN_S, look_again)

        look_again()

    yield _wrapped(Leader, "end", end)


def _nobody_is_eligible() -> Iterator[Patch]:
    yield mock.patch.object(InSyncReplicas, "keeps_eligible", property(lambda _: False, lambda *_: None))
    yield mock.patch.object(election, "kept_eligible", lambda *_: {})


def _what_is_in_the_log_waits() -> Iterator[Patch]:
    async def settle(*_: object) -> None:
        """Wait for no acknowledgement."""

    def try_complete(original: Any, produce: Any) -> bool:
        # What was appended waits for the next leader, as what was not.
        for leader, waiting in list(produce._awaiting.items()) if produce._started else ():
            if leader.end_reason is not None and not produce.finished:
                for _, produced, index in waiting:
                    produce._refuse(leader.topic_partition, leader.end_reason, produced, index)
                del produce._awaiting[leader]
                leader.ack_waiters.remove(produce)
        return bool(original(produce))

    yield mock.patch.object(IsrLeaves, "_settle", settle)
    yield _wrapped(DelayedProduce, "try_complete", try_complete)


def _the_first_logs_do() -> Iterator[Patch]:
    def why_not_recovered(state: PartitionState, live: Any, logs: Any) -> str:
        return "" if best_log(state, live, logs) in logs else "nobody has reported"

    yield mock.patch.object(last_resorts, "why_not_recovered", why_not_recovered)


def _what_is_committed_is_cut_like_the_rest() -> Iterator[Patch]:
    yield mock.patch.object(OwnState, "has_committed", lambda *_: False)


def _any_later_fetch_confirms() -> Iterator[Patch]:
    def has_heard(confirmation: Any, session: Any) -> bool:
        return bool(session.last_fetch_s > confirmation._began_s)

    yield mock.patch.object(Confirmation, "_has_heard", has_heard)


def _identities_are_not_synced() -> Iterator[Patch]:
    yield mock.patch.object(LogIdentity, "changed", lambda identity: None)


def _no_damaged_log_leads_next() -> Iterator[Patch]:
    yield mock.patch.object(follower_logs, "next_leader", lambda *_: None)


def _what_is_read_again_counts_for_nothing() -> Iterator[Patch]:
    yield mock.patch.object(Rereads, "is_due", lambda *_: False)


def _former_members_cut_like_the_rest() -> Iterator[Patch]:
    yield _wrapped(Follower, "_own_state", lambda original, follower: original(follower)._replace(is_sound=False))


RULES: Final[dict[str, Callable[[], Iterator[Patch]]]] = {
    "R1": _whoever_is_named_leads,
    "R2": _older_states_apply,
    "R3": _any_epoch_is_served,
    "R4": _who_is_to_leave_counts_no_more,
    "R5": _unknown_outcomes_are_forgotten,
    "R6": _leases_have_no_end,
    "R7": _fetches_name_no_incarnation,
    "R8": _who_restarts_stays,
    "R10": _logs_are_known_by_name,
    "R11": _members_are_brokers,
    "R12": _every_log_is_proven,
    "R13": _the_controller_looks_once,
    "R14": _states_are_written_unguarded,
    "R15": _waits_look_at_offsets_alone,
    "R16": _nobody_is_eligible,
    "R17": _what_is_in_the_log_waits,
    "R18": _the_first_logs_do,
    "R19": _what_is_committed_is_cut_like_the_rest,
    "R20": _any_later_fetch_confirms,
    "R21": _identities_are_not_synced,
    "R22": _no_damaged_log_leads_next,
    "R23": _what_is_read_again_counts_for_nothing,
    "R24": _former_members_cut_like_the_rest,
    **MOVE_RULES,
}


@contextlib.contextmanager
def without(rule: str) -> Iterator[None]:
    """Take a rule away."""
    with contextlib.ExitStack() as stack:
        for patch in RULES[rule]():
            stack.enter_context(patch)
        yield
