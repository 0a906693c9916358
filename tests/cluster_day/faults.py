"""The faults of the day, one after the other: each is healed, and the cluster whole again, before the next.

Broker 3 is only paused. Each kind comes before one comes again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.cluster_day.day_cluster import LASTING_BROKER, DayCluster
from tests.cluster_day.part import Part, Plan

_AWAY_S: Final = (0.5, 12.0)
_PAUSE_S: Final = (2.0, 10.0)
# Between two faults: at least so long, and up to a share of an hour more.
_REST_S: Final = 3.0
_REST_HOURS: Final = 0.2


class Faults(Part):
    """``played`` has each fault: when it began and ended on the monotonic clock, and what it was."""

    def __init__(self, plan: Plan, cluster: DayCluster) -> None:
        super().__init__("faults")
        self._plan = plan
        self._cluster = cluster
        self._chance = plan.chance(self.name)
        self.played: list[tuple[float, float, str]] = []
        self._kinds: dict[str, Callable[[], str]] = {
            "killed broker": self._kill_broker,
            "restarted brokers": self._roll,
            "paused broker": self._pause_broker,
            "killed registry server": self._kill_registry_server,
        }

    def run(self) -> None:
        coming: list[str] = []
        while not self.stopping.wait(_REST_S + self._chance.uniform(0, _REST_HOURS * self._plan.hour_s)):
            if not coming:
                coming = self._chance.sample(sorted(self._kinds), len(self._kinds))
            kind = coming.pop()
            began = time.monotonic()
            text = self._kinds[kind]()
            self._cluster.wait_until_whole()
            self.played.append((began, time.monotonic(), f"{kind} {text}"))

    def counts(self) -> Counter[str]:
        return Counter(" ".join(text.split()[:2]) for _, _, text in self.played)

    def around(self, moment: float) -> str:
        """Say what fault there was at a moment, or what the last one before was."""
        begun = [text for began, _, text in self.played if began <= moment]
        return begun[-1] if begun else "none yet"

    def _ending_brokers(self) -> list[int]:
        return [number for number in self._cluster.brokers if number != LASTING_BROKER]

    def _kill_broker(self) -> str:
        number = self._chance.choice(self._ending_brokers())
        away_s = self._chance.uniform(*_AWAY_S)
        self._cluster.kill(number)
        time.sleep(away_s)
        self._cluster.restart(number)
        return f"{number} for {away_s:.1f} s"

    def _roll(self) -> str:
        for number in self._ending_brokers():
            self._cluster.restart(number)
            self._cluster.wait_until_whole()
        return "in turn"

    def _pause_broker(self) -> str:
        number = self._chance.choice(list(self._cluster.brokers))
        paused_s = self._chance.uniform(*_PAUSE_S)
        self._cluster.pause(number)
        try:
            time.sleep(paused_s)
        finally:
            self._cluster.resume(number)
        return f"{number} for {paused_s:.1f} s"

    def _kill_registry_server(self) -> str:
        number = self._chance.randrange(len(self._cluster.ensemble.servers))
        server = self._cluster.ensemble.servers[number]
        away_s = self._chance.uniform(*_AWAY_S)
        server.kill()
        time.sleep(away_s)
        server.start(wait=False)
        server.wait_until_serving()
        return f"{number + 1} for {away_s:.1f} s"
