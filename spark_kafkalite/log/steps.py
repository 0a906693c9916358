"""Work on a log that takes long: its owner does the steps, and any thread the pieces in between.

A generator yields each :class:`Piece` that may be run elsewhere, and goes on when it has been; between two steps the
log belongs to that piece, and its owner leaves it alone. A caller without a thread runs all of it (:func:`run_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Piece(Generic[T]):
    """One piece of work: run once, in any thread; afterwards the owner asks for its result."""

    __slots__ = ("_error", "_result", "_work")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work. Never raises: :meth:`result` does."""
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def fail(self, error: BaseException) -> None:
        """Report that the work could not be run."""
        self._error = error

    def result(self) -> T:
        """Return what the work returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


Steps = Generator[Piece[Any], None, T]


def run_steps(steps: Steps[T]) -> T:
    """Do all of it in this thread."""
    try:
        while True:
            next(steps).run()
    except StopIteration as end:
        result: T = end.value
        return result
