"""Runs a broker whose group coordinator has a bug on purpose, to show that a storm would find it.

    python faulty_coordinator.py BUG COMMAND...

stands before a broker's command; only the command's ``--override NAME=VALUE`` pairs count. Each bug changes one thing.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_kafkalite.broker.event_log import configure_logging
from spark_kafkalite.broker.server import Broker
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.groups_state import GroupShard
from spark_kafkalite.coordinator.groups.members import Persist
from spark_kafkalite.coordinator.groups.rebalance import Rebalance
from spark_kafkalite.coordinator.groups.records import OffsetKey
from spark_kafkalite.coordinator.record_writer import OnDone
from spark_kafkalite.coordinator.shard import Shard
from spark_kafkalite.coordinator.state_machine import Entry

_LATE_S = 0.5


def _answer_before_append() -> None:
    """A commit is answered, and seen, at once; its record is written later."""
    write = Shard.write

    def later(self: Shard[Any], entries: Sequence[Entry], on_done: OnDone, producer: None = None) -> None:
        if not all(isinstance(key, OffsetKey) for key, _ in entries):
            write(self, entries, on_done, producer)
            return
        self.state.apply(entries, range(len(entries)))
        asyncio.get_running_loop().call_later(_LATE_S, write, self, entries, lambda error: None)
        on_done(None)

    Shard.write = later  # type: ignore[method-assign]


def _commit_without_fence() -> None:
    """Whoever commits may."""
    Group.check_commit = lambda *_: None  # type: ignore[method-assign]


def _heartbeat_without_fence() -> None:
    """No heartbeat says that the group rebalances, or goes on without the one who asks."""
    Group.heartbeat = lambda self, member_id, instance, generation, now_ms: self.touch(  # type: ignore[method-assign]
        member_id, now_ms
    )


def _generation_stands_still() -> None:
    """A rebalance does not begin a generation of its own."""
    complete = Rebalance.complete

    def stand_still(self: Rebalance, now_ms: int) -> None:
        before = self.generation
        self.generation = max(before - 1, 0)
        complete(self, now_ms)
        self.generation = max(self.generation, before)

    Rebalance.complete = stand_still  # type: ignore[method-assign]


def _keep_assignments() -> None:
    """A member that stays keeps its assignment of the last generation, whatever the leader says."""
    assign = Rebalance.assign

    def keep(self: Rebalance, generation: int, assignments: Mapping[str, bytes]) -> None:
        kept = {each.member_id: each.assignment for each in self.roster.members.values() if each.assignment}
        assign(self, generation, {**assignments, **kept})

    Rebalance.assign = keep  # type: ignore[method-assign]


def _forget_groups() -> None:
    """Members and generations are not written, only offsets are."""

    def forget(self: GroupCoordinator, shard: GroupShard, group: Group, persist: Persist) -> None:
        def written() -> None:
            group.apply(group.to_metadata(group.current_state_timestamp_ms, persist))
            self._written(shard, group, persist, None)

        asyncio.get_running_loop().call_soon(written)

    GroupCoordinator._write = forget  # type: ignore[method-assign]


def _keep_the_dead() -> None:
    """No session ends."""
    Rebalance._expire_members = lambda self, now_ms: None  # type: ignore[method-assign]


@dataclass(frozen=True)
class Bug:
    """How to bring it about, what a storm says of it, and what that takes: members, trouble, kills of the broker."""

    plant: Callable[[], None]
    seen_as: frozenset[str]
    kinds: tuple[str, ...] = ("ours", "confluent", "kafka-python")
    trouble: tuple[str, ...] = ("leave", "crash", "pause")
    kills: bool = False


BUGS = {
    "answer-before-append": Bug(_answer_before_append, frozenset({"commit went back"}), kills=True),
    "commit-without-fence": Bug(
        _commit_without_fence, frozenset({"commit of an old generation"}), kinds=("confluent", "ours!zombie")
    ),
    "heartbeat-without-fence": Bug(_heartbeat_without_fence, frozenset({"no rest"})),
    "generation-stands-still": Bug(_generation_stands_still, frozenset({"two owners"})),
    "keep-assignments": Bug(_keep_assignments, frozenset({"two owners"})),
    "forget-groups": Bug(_forget_groups, frozenset({"generation went back", "two owners"}), kills=True),
    "keep-the-dead": Bug(_keep_the_dead, frozenset({"no rest"}), trouble=("crash",)),
}


def command_prefix(bug: str | None) -> list[str]:
    """Return what stands before the command of a broker with this bug; nothing for one without."""
    return [sys.executable, __file__, bug] if bug else []


def main(arguments: list[str]) -> int:
    bug, *command = arguments
    BUGS[bug].plant()
    given = tuple(value for name, value in itertools.pairwise(command) if name == "--override")
    config = BrokerConfig.load(None, parse_overrides(given))
    configure_logging(config["logging.level"])
    return asyncio.run(Broker(config).run(lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
