r"""A pytest plug-in: the clock of slices stalls, as on a host that stops the process again and again.

    pytest -p tests.slowclock tests/unit/test_slices.py tests/unit/broker/requests tests/unit/broker/network

It replaces the default clock of ``Slices``, which brokers and registries use. One reading in twenty comes 20 ms late,
longer than a slice and a pass together; between the others a microsecond passes. A test that passes only where the
host is fast reads that clock, so it fails here, with the same seed every time. Tests that give their worlds a clock of
their own (``tests.unit.slice_clock``) do not notice.

``KAFKALITE_SLOW_CLOCK`` sets the stall in seconds and how many readings there are to one: ``0.02/20`` by default,
``0.003/1`` lets every reading take a slice. ``KAFKALITE_SLOW_CLOCK_SEED`` sets the seed, by default the run's
(``tests.seeds``). A session does not start if production's slices would not read this clock; its last lines name the
seed, the readings and the stalls.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from spark_kafkalite.broker.start import BrokerStart
from spark_kafkalite.slices import Now, Slices, Work
from tests.seeds import SEED

# Between two readings without a stall.
_STEP_S: Final = 1e-6


class StallingClock:
    """Seconds since any time; ``per_stall`` readings to one that comes ``stall_s`` late, at random."""

    def __init__(self, stall_s: float, per_stall: int, seed: int) -> None:
        self.seed = seed
        self.readings = self.stalls = 0
        self._stall_s = stall_s
        self._per_stall = per_stall
        self._random = random.Random(seed)
        self._now_s = 1000.0

    def __call__(self) -> float:
        self.readings += 1
        self._now_s += _STEP_S
        if self._random.randrange(self._per_stall) == 0:
            self.stalls += 1
            self._now_s += self._stall_s
        return self._now_s


def clock_of_environment() -> StallingClock:
    """Return the clock that the environment asks for. Raises UsageError."""
    setting = os.environ.get("KAFKALITE_SLOW_CLOCK", "0.02/20")
    try:
        stall, _, per_stall = setting.partition("/")
        return StallingClock(
            float(stall), max(1, int(per_stall or 20)), int(os.environ.get("KAFKALITE_SLOW_CLOCK_SEED", SEED))
        )
    except ValueError as error:
        raise pytest.UsageError(
            f"KAFKALITE_SLOW_CLOCK={setting!r} is not of the form SECONDS/READINGS: {error}"
        ) from error


@contextmanager
def installed(clock: Now) -> Iterator[None]:
    """Make ``clock`` the default of ``Slices`` meanwhile."""
    init: Any = Slices.__init__
    before = init.__defaults__
    init.__defaults__ = (clock,)
    try:
        yield
    finally:
        init.__defaults__ = before


def check_is_read(clock: StallingClock) -> None:
    """Raise UsageError unless the slices that a broker makes read this clock."""

    def work() -> Work[None]:
        yield None

    before = clock.readings
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(BrokerStart.make_slices(loop).run(work()))
    finally:
        loop.close()
    if clock.readings == before:
        raise pytest.UsageError("tests/slowclock.py does not replace the clock that a broker's Slices read")


class _Plugin:
    def __init__(self, clock: StallingClock) -> None:
        self._clock = clock

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        clock = self._clock
        terminalreporter.write_line(
            f"slow clock: KAFKALITE_SLOW_CLOCK_SEED={clock.seed}, {clock.readings} readings, {clock.stalls} stalls"
        )


def pytest_configure(config: pytest.Config) -> None:
    clock = clock_of_environment()
    replacing = installed(clock)
    replacing.__enter__()
    config.add_cleanup(lambda: replacing.__exit__(None, None, None))
    check_is_read(clock)
    config.pluginmanager.register(_Plugin(clock), "kafkalite-slow-clock")
