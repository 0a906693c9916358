"""What a process has used of the processor: a bound on it holds however much else the machine does, and however slow it
is, with what :func:`slowness` says of it. For the soak and the benches: a test of ``make test`` bounds no time."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path


def used_s(pid: int) -> float:
    """Return the processor time of a process so far, its threads' and the kernel's for it, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# What the piece of work takes where the bounds were set.
_PIECE_MS = 5.3


def slowness() -> float:
    """Return how many times as long as where bounds were set plain Python takes now in this thread, at least 1.

    Processors differ by a factor of two, and one that shares its core and its caches with somebody else takes up to
    half as long again. Asked next to what is measured.
    """
    return max(1.0, statistics.median(piece_ms() for _ in range(5)) / _PIECE_MS)


def piece_ms() -> float:
    """Return what a piece of work of a broker's kind takes, in ms of this thread.

    It makes no containers: the collector would visit what else the process holds.
    """
    began_s = time.thread_time()
    table = {}
    for number in range(20_000):
        key = b"%d" % number
        table[key] = len(key) + number
    total = 0
    for key, value in table.items():
        total += value ^ key[0]
    return 1000 * (time.thread_time() - began_s)
