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
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from spark_kafkalite.cli.broker import parse_overrides

if TYPE_CHECKING:
    from spark_kafkalite.broker.server import Broker

_EVERY_S = 0.005
_FLUSHED_EVERY = 200


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
