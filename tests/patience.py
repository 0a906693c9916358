"""How tests wait: for conditions, with one bound that only ends a test that hangs.

No test passes or fails by how long something took. A bound that a slow machine could reach would make it do so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

# Far more than anything takes on a slow machine, and less than pytest's timeout.
PATIENCE_S: Final = 60.0

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], what: str | Callable[[], str], *, poll_s: float = 0.01, patience_s: float = PATIENCE_S
) -> T:
    """Return the first true result of ``condition``.

    A condition that raises AssertionError does not hold yet. After ``patience_s`` this raises AssertionError: it names
    ``what`` was waited for (a function is called then, and may add what there is) and the last result.
    """
    waiting = _Waiting(what, patience_s)
    while not waiting.has_come(condition):
        time.sleep(poll_s)
    return waiting.result  # type: ignore[return-value]


async def wait_until_async(condition: Callable[[], T], what: str | Callable[[], str], *, poll_s: float = 0.0) -> T:
    """:func:`wait_until` on an event loop. With ``poll_s`` 0 it asks once in a pass of the loop."""
    waiting = _Waiting(what)
    while not waiting.has_come(condition):
        await asyncio.sleep(poll_s)
    return waiting.result  # type: ignore[return-value]


class _Waiting:
    def __init__(self, what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> None:
        self._what = what
        self._patience_s = patience_s
        self._until_s = time.monotonic() + patience_s
        self.result: object = None

    def has_come(self, condition: Callable[[], object]) -> bool:
        try:
            self.result = condition()
            if self.result:
                return True
        except AssertionError as not_yet:
            self.result = not_yet
        if time.monotonic() > self._until_s:
            what = self._what() if callable(self._what) else self._what
            raise AssertionError(f"not in {self._patience_s:.0f} s: {what}; the last result: {self.result!r}")
        return False
