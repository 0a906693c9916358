"""Keeps the garbage collector's full collections short in a process that lives long and holds very much.

A full collection looks at every object that has survived so far, half a microsecond each: with ten thousand partitions
it stops everything for half a second, and while they are made it runs again and again. What has survived one that took
long is therefore frozen: no later one looks at it. Until then a collection has looked at no more than what has been
made since the last freeze.

What is frozen is still freed when nothing refers to it any more, but not when it refers to itself in a circle. So what
comes and goes by the thousand must leave no circles behind: closing breaks them. What is lost otherwise is at most what
lived at the few freezes of a process.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import Any, Final

# A collection of some forty thousand objects.
FREEZE_AFTER_S: Final = 0.020


class _Watch:
    """Sees collections begin and end."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began_s = perf_counter()
        elif perf_counter() - self._began_s > FREEZE_AFTER_S:
            gc.freeze()


def keep_collections_short() -> None:
    """Freeze what exists, and from now on whatever a long collection has looked at; turn the collector on."""
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_Watch())
    gc.enable()
