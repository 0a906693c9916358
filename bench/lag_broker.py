"""Runs a broker and notes how late its event loop is.

    python -m bench.lag_broker FILE COMMAND...

stands before a broker's command, of which only the ``--override NAME=VALUE`` pairs count. A task of the loop asks to be
woken every 5 ms. FILE gets a line more per wake-up: the monotonic time in seconds, how late it was (which counts waits
for a processor), and how long the loop's thread was on a processor since the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from spark_kafkalite.cli.broker import parse_overrides

if TYPE_CHECKING:
    from spark_kafkalite.broker.server import Broker

_EVERY_S = 0.005
_FLUSHED_EVERY = 200
_BROKERS = (1, 2, 3)


def lag_prefixes(directory: Path) -> dict[int, tuple[str, ...]]:
    """Return what stands before the commands of brokers 1 to 3, by number; FILE is ``lag-N`` in the directory."""
    return {number: (sys.executable, "-m", "bench.lag_broker", str(directory / f"lag-{number}")) for number in _BROKERS}


def samples(directory: Path, windows: Sequence[tuple[int, float, float]]) -> tuple[list[float], list[float]]:
    """Return the lags, and the CPU between wake-ups, in ms, of the brokers of :func:`lag_prefixes` that have ended.

    Each window is a broker whose figures do not count in it (0 is none), and its begin and end in monotonic seconds.
    """
    late, busy = [], []
    for number in _BROKERS:
        for line in (directory / f"lag-{number}").read_text(encoding="ascii").splitlines():
            at_s, late_s, busy_s = map(float, line.split())
            if any(began_s <= at_s <= ended_s for left_out, began_s, ended_s in windows if left_out != number):
                late.append(late_s * 1e3)
                busy.append(busy_s * 1e3)
    return late, busy


def main(arguments: list[str]) -> int:
    """Run the broker of the command until it is stopped."""
    path, *command = arguments
    overrides = parse_overrides(tuple(value for name, value in itertools.pairwise(command) if name == "--override"))
    from spark_kafkalite.broker.event_log import configure_logging
    from spark_kafkalite.broker.server import Broker
    from spark_kafkalite.broker.settings.config import BrokerConfig
    from spark_kafkalite.net import event_loop

    config = BrokerConfig.load(None, overrides)
    configure_logging(config["logging.level"])
    return event_loop.run(_run(Broker(config), Path(path)))


async def _run(broker: Broker, path: Path) -> int:
    # What a process that is killed has not flushed is the last second's.
    with path.open("a", encoding="ascii") as file:
        watching = asyncio.create_task(_watch(file))
        try:
            return await broker.run(lambda line: print(line, flush=True))
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _watch(file: TextIO) -> None:
    busy_before_s = time.thread_time()
    for number in itertools.count():
        asked_s = time.monotonic()
        await asyncio.sleep(_EVERY_S)
        now_s, busy_s = time.monotonic(), time.thread_time()
        file.write(f"{now_s:.6f} {max(0.0, now_s - asked_s - _EVERY_S):.6f} {busy_s - busy_before_s:.6f}\n")
        if number % _FLUSHED_EVERY == 0:
            file.flush()
        busy_before_s = busy_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
