"""What all clients of a run share: where they work, the thread, the end."""

from __future__ import annotations

import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tests.chaos.history import At, Client, Failure, HistoryWriter
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

REQUEST_TIMEOUT_MS = 3_000
DELIVERY_TIMEOUT_MS = 60_000
# Ends a run that hangs. The soak moves gigabytes on hosts that do a lot else: a wait there ends earlier only when what
# it waits for has died.
HARD_END_S = 900.0 if SOAK else PATIENCE_S
# A poller that is not shown the end gives up by itself after HARD_END_S.
_STOP_TIMEOUT_S = HARD_END_S + 30


@dataclass(frozen=True)
class Place:
    """One topic of a cluster: where clients work and what they write to. ``brokers`` are addresses by number;
    ``registry`` is where clients find it, empty without; ``serves_newer_groups`` is whether brokers know KIP-848."""

    bootstrap: str
    brokers: dict[int, str]
    topic: str
    topic_id: str
    partitions: int
    history: HistoryWriter
    seed: int = 0
    registry: str = ""
    serves_newer_groups: bool = False

    def at(self, partition: int) -> At:
        return self.topic_id, partition


class ChaosClient(ABC):
    """A client in a thread. ``who`` is its name in the history; it ends some time after ``stop()``."""

    def __init__(self, who: str, place: Place) -> None:
        self.who = who
        self.place = place
        self.problem = ""
        self.stopping = threading.Event()
        self.chance = random.Random(f"{place.seed} {who}")
        self._thread = threading.Thread(target=self._run_watched, name=who, daemon=True)

    @abstractmethod
    def description(self) -> Client:
        """Return what the history says of it."""

    @abstractmethod
    def run(self) -> None:
        """Work until ``stopping`` is set, in the client's thread."""

    def start(self) -> None:
        self.place.history.note(self.description())
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; ``join`` waits for that."""
        self.stopping.set()

    def join(self) -> None:
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self.problem = f"{self.who} has not ended {_STOP_TIMEOUT_S} s after it was told to"

    def note_failure(self, begun: float, error: object) -> None:
        """Note an error that a user would have seen."""
        self.place.history.note(Failure(who=self.who, begun=begun, ended=time.monotonic(), error=repr(error)))

    def _run_watched(self) -> None:
        try:
            self.run()
        except Exception:  # it has to fail the run, not only this thread
            self.problem = f"{self.who}: {traceback.format_exc()}"
