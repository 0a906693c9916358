"""What rows of faults, and who plays them, need of a cluster: ours (``our_cluster``) and Apache Kafka's
(``apache_cluster``) have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tests.chaos.clients.client import Place
from tests.chaos.history import Complaint, HistoryWriter, Leftover


class PlayedBroker(Protocol):
    """One broker's process."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool: ...

    def start(self) -> object:
        """Start it and return when it serves."""

    def stop(self) -> object:
        """Stop it in order."""

    def kill(self) -> None:
        """End it with SIGKILL."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class PlayedCluster(Protocol):
    """Some brokers; a context manager, which starts them."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def brokers(self) -> Mapping[int, PlayedBroker]: ...

    @property
    def addresses(self) -> dict[int, str]: ...

    def leader_of(self, place: Place, partition: int = 0) -> int:
        """Return who leads a partition; wait for one."""

    def follower_of(self, place: Place, partition: int = 0) -> int:
        """Return a follower that is in sync."""

    def in_sync(self, place: Place, partition: int = 0) -> set[int]:
        """Return a partition's ISR."""

    def replicas_of(self, place: Place, partition: int = 0) -> set[int]:
        """Return who has a partition, those that a reassignment is adding among them."""

    def mend(self) -> None:
        """Have every broker run and be reached, whatever was done to them. Raises ChildFailed."""

    def wait_in_sync(self, place: Place, timeout_s: float = ...) -> None:
        """Wait until every ISR is full. Raises ChildFailed."""

    def note_states(self, place: Place) -> None:
        """Note who leads the topic's partitions now, and their ISRs."""

    def note_registrations(self, history: HistoryWriter) -> None:
        """Note what the registry holds of brokers, where there is one."""

    def note_health(self, history: HistoryWriter, phase: str) -> None:
        """Note how the brokers' processes are."""

    def stop(self) -> None:
        """Stop everything in order: what the files hold is final."""

    def note_files(self, history: HistoryWriter, topics: Mapping[str, str]) -> None:
        """Note what the stopped brokers' files hold of topics (id: name)."""

    def complaints(self) -> list[Complaint | Leftover]:
        """Return what the stopped brokers complain of, and have left behind."""


def mend_processes(brokers: Mapping[int, PlayedBroker]) -> None:
    """Have these processes run and go on. Raises ChildFailed."""
    for broker in brokers.values():
        if broker.running:
            broker.resume()
        else:
            broker.start()
