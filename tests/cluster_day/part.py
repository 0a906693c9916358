"""What all parts of a day share: the plan, a thread, a problem, an end."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOURS: Final = 24
TOPIC: Final = "day"
PARTITIONS: Final = 12
_END_TIMEOUT_S: Final = 240.0
_CLOSE_TIMEOUT_S: Final = 20.0


class PartFailed(Exception):
    """Something did not go as it must; the day is lost."""


@dataclass(frozen=True)
class Plan:
    """How long the day lasts, in seconds, by which chances, and where everything lies."""

    seconds: float
    seed: int
    directory: Path

    @property
    def hour_s(self) -> float:
        return self.seconds / HOURS

    def chance(self, who: str) -> random.Random:
        """Return the chances of one part, which do not depend on what the others do."""
        return random.Random(f"{self.seed} {who}")


class Part(ABC):
    """Something that goes on all day, in a thread of its own.

    ``problem`` says what it has met that must not be; the day ends early then.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem = ""
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_watched, name=name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """Work until ``stopping`` is set, in the part's thread."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end."""
        self.stopping.set()

    def join(self) -> None:
        """Wait for its end. Raises PartFailed with its problem, or when it does not end."""
        self._thread.join(_END_TIMEOUT_S)
        if self._thread.is_alive():
            raise PartFailed(f"{self.name} has not ended {_END_TIMEOUT_S:.0f} s after it was asked to")
        if self.problem:
            raise PartFailed(self.problem)

    def close(self) -> None:
        """End whatever it has started, however the day went."""
        self.stopping.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run_watched(self) -> None:
        try:
            self.run()
        except PartFailed as error:
            self.problem = f"{self.name}: {error}"
        except Exception:  # it has to fail the day, not only this thread
            self.problem = f"{self.name}: {traceback.format_exc()}"


def wait_until(condition: Callable[[], object], timeout_s: float, what: str | Callable[[], str]) -> None:
    """Wait for a condition. Raises PartFailed, which names what did not come (a callable: as it is then)."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise PartFailed(f"waited {timeout_s:.0f} s for {what() if callable(what) else what}")
        time.sleep(0.05)


def spark_environment() -> dict[str, str]:
    """Return what a Spark of this interpreter needs in its environment."""
    own = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **own}
