"""Runs a broker that notes how long its event loops are busy between two polls of their sockets.

    python metered_broker.py FILE COMMAND...

stands before a broker's command; only the command's ``--override NAME=VALUE`` pairs count. On SIGUSR1 it writes to FILE
the longest turns since the last time, how many events they had, and how much memory was in use at most
(:class:`Readings`), and begins again.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from spark_kafkalite.broker.event_log import configure_logging
from spark_kafkalite.broker.server import Broker, limit_kept_memory
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.net import event_loop
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until


@dataclass
class Readings:
    """Longest turns in ms of the thread's processor time and of the clock, by thread; the collector's longest pause,
    in the same time; how many sockets the main loop's polls reported as ready, all polls together; memory in bytes."""

    busy_ms: dict[str, float] = field(default_factory=dict)
    wall_ms: dict[str, float] = field(default_factory=dict)
    collector_ms: float = 0.0
    events: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0

    @property
    def longest_ms(self) -> float:
        return max(self.busy_ms.values(), default=0.0)

    @property
    def longest_wall_ms(self) -> float:
        return max(self.wall_ms.values(), default=0.0)


class MeteredBroker(BrokerProcess):
    """A broker process whose turns can be read off."""

    def __init__(self, data_dir: Path, *, command_prefix: Sequence[str] = (), **arguments: Any) -> None:
        self._readings = data_dir.parent / "readings.json"
        meter = (sys.executable, str(Path(__file__)), str(self._readings))
        super().__init__(data_dir, command_prefix=(*command_prefix, *meter), **arguments)

    def start(self) -> Self:
        super().start()
        self.read()
        return self

    def read(self) -> Readings:
        """Return what was longest and most since the last time."""
        self._readings.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(self._readings.exists, "the broker writes its readings")
        return Readings(**json.loads(self._readings.read_text()))

    def least_longest_ms(self, play: Callable[[], object]) -> float:
        """Play a scenario three times and return the least of its longest turns, in ms of the processor.

        A turn that is too long is too long each time. Noise is not.
        """
        longest_ms = []
        for _ in range(3):
            self.read()
            play()
            longest_ms.append(self.read().longest_ms)
        print(f"longest turns: {', '.join(f'{each:.0f}' for each in longest_ms)} ms")
        return min(longest_ms)

    def events_of(self, requests: int) -> int:
        """Return how many sockets the main loop's polls report while a client has so many requests answered.

        Each poll that finds a request reports every other socket that is ready, too. So a loop that is busy with
        nothing, at any speed of the host, has twice as many events as requests or more.
        """
        self.read()
        with RawClient(self.bootstrap, PATIENCE_S) as client:
            for _ in range(requests):
                client.call(ApiVersionsRequest(), 2)
        return self.read().events

    def wait_for_rest(self, requests: int = 200) -> None:
        """Wait until the main loop has nothing to do but to answer requests."""
        wait_until(lambda: self.events_of(requests) < 1.5 * requests, "the broker's loop is busy with nothing else")


class _WatchedPoll:
    """Stands before the system's poll and reports when a selector waits: a broker works in its selector, too."""

    def __init__(self, poll: Any, before: Callable[[], None], after: Callable[[int], None]) -> None:
        self._poll = poll
        self._before = before
        self._after = after

    def poll(self, *arguments: Any) -> Any:
        self._before()
        events = self._poll.poll(*arguments)
        self._after(len(events))
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)


class _Meter:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._readings = Readings()
        self._is_asked = False
        self._collection_began_s = 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began_s = time.thread_time()
        else:
            took_ms = 1000 * (time.thread_time() - self._collection_began_s)
            self._readings.collector_ms = max(self._readings.collector_ms, took_ms)

    def watch(self, loop: Any) -> None:
        """Measure a loop that is about to run in this thread."""
        selector = loop._selector
        name = threading.current_thread().name
        began = (time.thread_time(), time.monotonic())

        def before() -> None:
            busy_ms, wall_ms = 1000 * (time.thread_time() - began[0]), 1000 * (time.monotonic() - began[1])
            readings = self._readings
            readings.busy_ms[name] = max(readings.busy_ms.get(name, 0.0), busy_ms)
            readings.wall_ms[name] = max(readings.wall_ms.get(name, 0.0), wall_ms)
            if self._is_asked and name == "MainThread":
                self._report()

        def after(events: int) -> None:
            nonlocal began
            if name == "MainThread":
                self._readings.events += events
            began = (time.thread_time(), time.monotonic())

        selector._selector = _WatchedPoll(selector._selector, before, after)

    def ask(self, *_: object) -> None:
        """Have the readings written when the present turn is over; the signal has woken the loop."""
        self._is_asked = True

    def _report(self) -> None:
        self._is_asked = False
        readings, self._readings = self._readings, Readings()
        status = Path("/proc/self/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        readings.resident_bytes = 1024 * int(fields["VmRSS"].split()[0])
        readings.peak_bytes = 1024 * int(fields["VmHWM"].split()[0])
        Path("/proc/self/clear_refs").write_text("5")
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(readings)))
        temporary.rename(self._file)


def main(arguments: list[str]) -> int:
    limit_kept_memory()
    file, *command = arguments
    meter = _Meter(Path(file))
    run_forever = asyncio.SelectorEventLoop.run_forever

    def watched(loop: Any) -> None:
        meter.watch(loop)
        run_forever(loop)

    asyncio.SelectorEventLoop.run_forever = watched  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, meter.ask)
    given = tuple(value for name, value in itertools.pairwise(command) if name == "--override")
    config = BrokerConfig.load(None, parse_overrides(given))
    configure_logging(config["logging.level"])
    return event_loop.run(Broker(config).run(lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
