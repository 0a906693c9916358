"""The clock of slices in unit tests: no test's outcome depends on how fast the host is.

Give it to ``Slices(loop, now)``. A clock that nobody moves lets every slice and every pass go on to its end; work that
is to be long says how long it takes (:meth:`SliceClock.take`). With ``reading_s`` time passes at each reading, for work
that goes on until something else has had its turn.
"""

from __future__ import annotations


class SliceClock:
    """See the module's text."""

    def __init__(self, reading_s: float = 0.0) -> None:
        self.now_s = 0.0
        self._reading_s = reading_s

    def __call__(self) -> float:
        self.now_s += self._reading_s
        return self.now_s

    def take(self, seconds: float) -> None:
        """Let time pass, as work does."""
        self.now_s += seconds
