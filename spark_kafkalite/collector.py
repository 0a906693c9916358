"""When Python's garbage collector runs in a broker or a registry, so that it does not stop their event loops.

Left alone, Python's collector traverses every long-lived object now and then. This takes tens of milliseconds with
thousands of connections and hundreds with ten thousand partitions, in the middle of some request. Reference counts free
nearly all of these objects, so the collection finds nothing. Hence:

- the objects that exist when the broker begins to serve are frozen: no collection traverses them (imported modules not
  even once);
- the two young generations are collected as usual, after so many allocations, which takes a millisecond or two;
- objects that survive both are collected once more between two callbacks of the loop, when there are enough of them to
  be worth it and not so many that it takes long; then they are frozen, too.

So short-lived cycles are freed soon, and no collection is long, however many objects there are. Cycles that were frozen
before they became garbage stay. Therefore a long-lived object of which there are thousands breaks its cycles when it is
closed. Connections, requests and partitions leave none (tests/interop/broker/test_collector.py). If other cycles
accumulate, memory use shows it: a full collection is due when the interpreter's blocks number some millions, and more
than twice what the last full collection left. It runs when the process has been quiet for a second, or at once when
they are more than four times that.

The collector is the process's: one broker, or registry, uses it from start to stop. Afterwards what is frozen stays so,
because Python collects once more when the process ends, and the end need not wait for that.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from typing import Final

logger = logging.getLogger(__name__)

# Allocations, net of deallocations, after which the youngest generation is looked at; and after how many such looks the
# middle one is. A tenth of a millisecond and one or two.
_YOUNG_OBJECTS: Final = 1_000
_YOUNG_LOOKS: Final = 8
# The oldest generation is not collected by itself.
_NEVER: Final = 1_000_000_000
# Objects that have survived both: from when on they are looked at, which takes two or three milliseconds, and up to
# when. More come when one callback makes very many, as for the metadata of ten thousand partitions.
_LOOKED_AT: Final = 5_000
_TOO_MANY_TO_LOOK_AT: Final = 15_000
# Blocks of the interpreter's allocator, each up to 512 bytes; beyond so many times what a full look left, and these.
_WANTED_TIMES: Final = 2
_WANTED_BLOCKS: Final = 3_000_000
_FORCED_TIMES: Final = 4
_FORCED_BLOCKS: Final = 8_000_000
# The process is quiet when it has used less than this share of a processor for so long.
_QUIET_SHARE: Final = 0.05
_QUIET_S: Final = 1.0


class Collector:
    """Takes the garbage collection of this process over; see the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn_queued = False
        self._blocks = 0
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._python_thresholds = gc.get_threshold()
        self._started = False

    def start(self) -> None:
        """Freeze what there is; from now on collect so that no look is long. Before clients are let in."""
        self._started = True
        self._python_thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        self._blocks = sys.getallocatedblocks()
        gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_LOOKS, _NEVER)
        gc.callbacks.append(self._collected)
        gc.enable()

    def stop(self) -> None:
        """Give the collector back to Python. Idempotent."""
        if not self._started:
            return
        self._started = False
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._python_thresholds)
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Have a collection of the middle generation followed by a turn; in whichever thread it happened."""
        if phase == "stop" and info["generation"] == 1 and not self._turn_queued:
            self._turn_queued = True
            self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self._turn_queued = False
        if not self._started:
            return
        survivors = len(gc.get_objects(generation=2))
        if survivors < _LOOKED_AT:
            return
        if survivors < _TOO_MANY_TO_LOOK_AT:
            gc.collect(2)
        gc.freeze()
        blocks = sys.getallocatedblocks()
        if blocks > _FORCED_TIMES * self._blocks + _FORCED_BLOCKS:
            self._look_at_everything()
        elif self._is_look_wanted(blocks) and self._quiet_timer is None:
            self._wait_for_quiet()

    def _is_look_wanted(self, blocks: int) -> bool:
        return blocks > _WANTED_TIMES * self._blocks + _WANTED_BLOCKS

    def _wait_for_quiet(self) -> None:
        began_s = time.process_time()

        def look_if_quiet() -> None:
            self._quiet_timer = None
            if not self._is_look_wanted(sys.getallocatedblocks()):
                # A large request had them.
                return
            if time.process_time() - began_s < _QUIET_SHARE * _QUIET_S:
                self._look_at_everything()
            else:
                self._wait_for_quiet()

        self._quiet_timer = self._loop.call_later(_QUIET_S, look_if_quiet)

    def _look_at_everything(self) -> None:
        began_s = time.monotonic()
        gc.unfreeze()
        garbage = gc.collect()
        gc.freeze()
        self._blocks = sys.getallocatedblocks()
        logger.debug(
            "a full garbage collection found %d objects in %.0f ms", garbage, 1000 * (time.monotonic() - began_s)
        )
