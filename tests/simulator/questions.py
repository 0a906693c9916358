"""Asks leaders whether they still lead (rule R20), and judges what they say.

A yes says that no other broker had begun to lead the partition under a later epoch when the question was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from spark_kafkalite.broker.replication.leader import Leader
from tests.simulator.world import World

# A question that waits keeps later ones waiting, so they come with gaps.
_GAPS_S: Final = (0.05, 0.2, 1.0, 2.0)


class Questions:
    """Asks every leader of the brokers that run, again and again."""

    def __init__(self, world: World, running: Callable[[], Iterable[Any]]) -> None:
        self._world = world
        self._running = running
        # When each partition was first led under each epoch.
        self._led_since_s: dict[tuple[bytes, int], dict[int, float]] = {}
        self.problems: list[str] = []
        self.confirmed = 0

    def start(self) -> None:
        self._world.after_each.append(self._look)
        self._ask_all()

    def _look(self) -> None:
        for run in self._running():
            for partition in run.replicas:
                if partition.leader is not None:
                    key = partition.topic_id, partition.topic_partition.partition
                    self._led_since_s.setdefault(key, {}).setdefault(partition.leader_epoch, self._world.now_s)

    def _ask_all(self) -> None:
        for run in self._running():
            for partition in run.replicas:
                if partition.leader is not None:
                    run.loop.call_soon(self._ask, run, partition, partition.leader)
        self._world.later(self._world.random.choice(_GAPS_S), self._ask_all)

    def _ask(self, run: Any, partition: Any, leader: Leader) -> None:
        asked_s = self._world.now_s
        key = partition.topic_id, partition.topic_partition.partition

        def answered(is_confirmed: bool) -> None:
            if not is_confirmed:
                return
            self.confirmed += 1
            for epoch, since_s in self._led_since_s.get(key, {}).items():
                if epoch > leader.epoch and since_s < asked_s:
                    self.problems.append(
                        f"{leader.topic_partition}: broker {run.owner.broker_id} said at {self._world.now_s:.3f} that "
                        f"it leads under epoch {leader.epoch}, asked at {asked_s:.3f}; epoch {epoch} is led since "
                        f"{since_s:.3f}"
                    )

        leader.confirm(answered)
