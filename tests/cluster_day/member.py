"""A member of a group of the day, in a process of its own: that of the storms, which also writes down what it reads.

Run with the SETTINGS of ``tests.interop.storms.member`` as one JSON object. Beside the journal lies NAME.rows, with a
line ``PARTITION OFFSET VALUE`` for each record, written before the record counts as delivered. SIGTERM makes it leave
in order; SIGUSR1 makes it leave without a commit of what it has read last.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.interop.storms.member import Member, Polled

ROWS_SUFFIX = ".rows"


class DayMember(Member):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        rows = Path(settings["journal"]).with_suffix(ROWS_SUFFIX)
        self._rows = os.open(rows, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.commits_no_more = False

    def deliver(self, records: Polled) -> None:
        if records:
            os.write(self._rows, b"".join(b"%d %d %s\n" % (at, offset, value) for at, offset, value in records))
        super().deliver(records)

    def check(self, partition: int, offset: int, value: bytes | None) -> None:
        pass  # the rows are compared with the log

    def commit(self, offsets: dict[int, int]) -> None:
        if not self.commits_no_more:
            super().commit(offsets)


def main(arguments: list[str]) -> int:
    member = DayMember(json.loads(arguments[0]))

    def stop(number: int, frame: object) -> None:
        member.commits_no_more = number == signal.SIGUSR1
        member.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, stop)
    member.connect()
    member.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
