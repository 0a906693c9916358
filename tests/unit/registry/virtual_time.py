"""Virtual time for tests over a registry in this process: the loop's clock jumps to the next timer when nothing is left
to do, in the loop or in the registries' threads. So a session timeout takes no time, and a bound that only ends a test
that hangs never ends one because the host is slow.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from spark_kafkalite.registry.store import SessionExpired
from spark_kafkalite.registry.tree.embedded import Answer, EmbeddedRegistry
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.manual_loop import ManualLoop
from tests.patience import PATIENCE_S

T = TypeVar("T")


class _Followed:
    """A registry, and how many operations it was asked for."""

    def __init__(self, registry: EmbeddedRegistry) -> None:
        self._registry = registry
        self._asked = 0
        self._lock = threading.Lock()
        self._submit_call = registry.submit_call
        registry.submit_call = self._count  # type: ignore[method-assign]

    def _count(self, run: Callable[[], Any], answer: Answer) -> None:
        with self._lock:
            self._asked += 1
        self._submit_call(run, answer)

    def is_open_and_idle(self) -> bool:
        """Wait until the registry's thread has nothing to do. Return False if the registry is closed."""
        while True:
            before = self._asked
            answered: Future[None] = Future()
            self._registry.submit(lambda: None, answered)
            try:
                answered.result(PATIENCE_S)
            except SessionExpired:
                return False
            # What its thread told before that answer may have asked for more.
            if self._asked == before + 1:
                return True


class RegistryLoop(ManualLoop):
    """See the module's text."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._followed: list[_Followed] = []
        super().__init__(self.clock, self._wait_for_registries)

    def follow(self, registry: EmbeddedRegistry) -> None:
        """Let no time pass while this registry has something to do."""
        self._followed.append(_Followed(registry))

    def _wait_for_registries(self) -> None:
        self._followed = [each for each in self._followed if each.is_open_and_idle()]


def running_loop() -> RegistryLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RegistryLoop)
    return loop


def follow(registry: EmbeddedRegistry) -> None:
    """Let no time pass on the running loop while this registry has something to do."""
    running_loop().follow(registry)


def run(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=RegistryLoop) as runner:
        return runner.run(work)
