"""Runs a broker whose clock is a day ahead.

    python -m tests.interop.cluster.day_ahead COMMAND...

stands before a broker's command, of which only the ``--override NAME=VALUE`` pairs count.
"""

from __future__ import annotations

import itertools
import sys

from spark_kafkalite.broker.event_log import configure_logging
from spark_kafkalite.broker.server import Broker
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.clock import SystemClock
from spark_kafkalite.net import event_loop

DAY_MS = 86_400_000


class _DayAhead(SystemClock):
    def wall_ms(self) -> int:
        return super().wall_ms() + DAY_MS


def main(command: list[str]) -> int:
    given = tuple(value for name, value in itertools.pairwise(command) if name == "--override")
    config = BrokerConfig.load(None, parse_overrides(given))
    configure_logging(config["logging.level"])
    return event_loop.run(Broker(config, _DayAhead()).run(lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
