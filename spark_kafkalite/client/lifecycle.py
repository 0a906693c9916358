"""The states of a client's life, and a table of which may follow which.

States only go forward. Several threads may close a client at once, and a later one must not take the state back. So a
step that the table does not have is no error; it is skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)


class Lifecycle(Generic[State]):
    """Where something is between its start and its end. Thread-safe."""

    def __init__(self, first: State, following: Mapping[State, Collection[State]]) -> None:
        """``following`` has, for each state, those that may come directly after it."""
        self._following = following
        self._lock = threading.Lock()
        #: Read by anybody, changed by :meth:`advance`.
        self.state = first

    def __repr__(self) -> str:
        return f"Lifecycle({self.state.name})"

    def advance(self, to: State) -> bool:
        """Go to a state, if it may follow the present one; returns whether it was gone to."""
        with self._lock:
            if to not in self._following[self.state]:
                return False
            self.state = to
            return True
