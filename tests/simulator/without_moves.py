"""Brokers without one of the rules V1 to V8 of reassignments (docs/replication.md); ``without`` has the others.

V5 and V6 have none. No schedule has a topic node come so much later than the state that V5 matters, and a list of
replicas that was written by hand, which V6 is about, is no fault of a schedule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.errors import InvalidReplicaAssignment
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.controller import reassignment
from spark_kafkalite.registry.controller.moves import Moves

Patch = contextlib.AbstractContextManager[Any]


def _nobody_is_waited_for() -> Iterator[Patch]:
    yield mock.patch.object(reassignment, "all_in_sync", lambda *_: True)


def _any_replica_is_enough() -> Iterator[Patch]:
    original = reassignment.check_enough

    def check_enough(after: Any, live: Any, min_insync: int) -> Any:
        try:
            return original(after, live, min_insync)
        except InvalidReplicaAssignment:
            left = tuple(each for each in after.replicas if each in live)
            if not left or not after.has_state or after.unreadable:
                raise
            return left[:1]

    yield mock.patch.object(reassignment, "check_enough", check_enough)


def _lists_are_written_first() -> Iterator[Patch]:
    async def write_step(moves: Any, states: Any, topic: Any) -> None:
        await moves._role.write([topic])
        if states:
            await moves._role.write(list(states))

    yield mock.patch.object(Moves, "_write_step", write_step)


def _who_comes_need_not_flush() -> Iterator[Patch]:
    yield mock.patch.object(Replicas, "_joins_flushed", lambda *_: False)


def _who_comes_counts_at_once() -> Iterator[Patch]:
    yield mock.patch.object(PartitionState, "settled_count", property(lambda state: len(state.replicas)))


def _a_controller_goes_by_changes_alone() -> Iterator[Patch]:
    yield mock.patch.object(Moves, "look_at_everything", lambda _: None)


MOVE_RULES: Final[dict[str, Callable[[], Iterator[Patch]]]] = {
    "V1": _nobody_is_waited_for,
    "V2": _any_replica_is_enough,
    "V3": _lists_are_written_first,
    "V4": _who_comes_need_not_flush,
    "V7": _who_comes_counts_at_once,
    "V8": _a_controller_goes_by_changes_alone,
}
