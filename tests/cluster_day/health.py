"""What the broker that is never ended holds over the day: memory and open files; and connections to the registry.

A part looks every second; ``Trend`` judges. All start small and the load grows with the hours, so the first quarter of
the day does not count: the medians of the second and of the last quarter may be a share apart, and an absolute amount
more, for what a small number does by chance.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.cluster_day.day_cluster import LASTING_BROKER, DayCluster
from tests.cluster_day.part import Part, Plan

SHARE: Final = 0.15
_LOOK_S: Final = 1.0
_ASK_REGISTRY_EVERY: Final = 10
_MB: Final = 1 << 20


@dataclass
class Trend:
    """Samples of one figure in the order of time. ``bound`` is the growth that is allowed beside SHARE."""

    name: str
    bound: float
    unit: int = 1
    samples: list[float] = field(default_factory=list)

    @property
    def second_quarter(self) -> float:
        return _median(self._quarter(1))

    @property
    def last_quarter(self) -> float:
        return _median(self._quarter(3))

    @property
    def problem(self) -> str:
        """Say that it grew more than it may; empty when it did not."""
        if len(self.samples) < 4:
            return f"{self.name}: {len(self.samples)} samples are no day's"
        most = self.second_quarter * (1 + SHARE) + self.bound
        if self.last_quarter <= most:
            return ""
        return f"{self.name} grew: {self}; at most {most / self.unit:.1f} is no trend"

    def _quarter(self, number: int) -> Sequence[float]:
        count = len(self.samples)
        return self.samples[count * number // 4 : count * (number + 1) // 4]

    def __str__(self) -> str:
        if not self.samples:
            return f"{self.name}: no samples"
        first, last = self.samples[0] / self.unit, self.samples[-1] / self.unit
        second_quarter, last_quarter = self.second_quarter / self.unit, self.last_quarter / self.unit
        return (
            f"{self.name}: first {first:.1f}, last {last:.1f}, median of the second quarter {second_quarter:.1f}, of "
            f"the last {last_quarter:.1f}"
        )


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples) if samples else 0.0


class Health(Part):
    """Looks all day. Its trends are of the broker that is never ended, and of the registry's connections."""

    def __init__(self, plan: Plan, cluster: DayCluster) -> None:
        super().__init__("health")
        self._cluster = cluster
        self.resident = Trend(f"resident MB of broker {LASTING_BROKER}", bound=8 * _MB, unit=_MB)
        self.descriptors = Trend(f"open descriptors of broker {LASTING_BROKER}", bound=10)
        self.connections = Trend("connections of the registry", bound=3)

    @property
    def trends(self) -> list[Trend]:
        return [self.resident, self.descriptors, self.connections]

    def run(self) -> None:
        looks = 0
        due = time.monotonic()
        while not self.stopping.wait(max(due - time.monotonic(), 0)):
            due += _LOOK_S
            self.resident.samples.append(self._cluster.brokers[LASTING_BROKER].resident_bytes())
            self.descriptors.samples.append(len(self.open_files()))
            if looks % _ASK_REGISTRY_EVERY == 0:
                self.connections.samples.append(self._cluster.registry_servers.connections())
            looks += 1

    def open_files(self) -> list[str]:
        """Return what the broker has open, as the kernel names it."""
        directory = f"/proc/{self._cluster.brokers[LASTING_BROKER].pid}/fd"
        found = []
        for name in os.listdir(directory):
            try:
                found.append(os.readlink(f"{directory}/{name}"))
            except FileNotFoundError:
                continue  # closed meanwhile
        return found

    def open_sockets(self) -> int:
        return sum(name.startswith("socket:") for name in self.open_files())
