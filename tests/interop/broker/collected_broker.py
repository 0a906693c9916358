"""Runs a broker that notes its garbage collections.

    python collected_broker.py DIRECTORY COMMAND...

stands before a broker's command. In DIRECTORY/collections each collection is a line: its generation, its time in
microseconds of the processor, and how many objects the collector had to visit. At SIGUSR2 the broker collects all
garbage, writes the types that it found as JSON to DIRECTORY/garbage, and from then on collects nothing. So the next
signal shows all garbage that has come since.
"""

from __future__ import annotations

import collections
import gc
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import wait_until


def command_prefix(directory: Path) -> tuple[str, ...]:
    """Return what stands before the command of a broker that notes its collections here."""
    return (sys.executable, __file__, str(directory))


def longest_ms(directory: Path, first: int = 0) -> float:
    """Return the time of the longest collection, the first so many left out."""
    lines = (directory / "collections").read_text().splitlines()[first:]
    return max((int(line.split()[1]) for line in lines), default=0) / 1000


def most_objects(directory: Path, first: int = 0) -> int:
    """Return the number of objects that the largest collection visited, the first so many left out."""
    lines = (directory / "collections").read_text().splitlines()[first:]
    return max((int(line.split()[2]) for line in lines), default=0)


def collections_so_far(directory: Path) -> int:
    return len((directory / "collections").read_text().splitlines())


def garbage(broker: BrokerProcess, directory: Path) -> collections.Counter[str]:
    """Have the broker look for garbage; return how many objects of which type it found."""
    found = directory / "garbage"
    found.unlink(missing_ok=True)
    os.kill(broker.pid, signal.SIGUSR2)
    wait_until(found.exists, "the broker writes what garbage it has found")
    return collections.Counter(json.loads(found.read_text()))


def _note_collections(directory: Path) -> None:
    began_ns = visited = 0
    # Not buffered: the broker may be killed.
    notes = (directory / "collections").open("ab", buffering=0)

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began_ns, visited
        if phase == "start":
            visited = sum(len(gc.get_objects(number)) for number in range(info["generation"] + 1))
            began_ns = time.thread_time_ns()
        else:
            took_us = (time.thread_time_ns() - began_ns) // 1000
            notes.write(b"%d %d %d\n" % (info["generation"], took_us, visited))

    def tell_garbage(*_: object) -> None:
        gc.disable()
        gc.unfreeze()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        types = collections.Counter(type(one).__qualname__ for one in gc.garbage)
        gc.garbage.clear()
        gc.collect()
        (directory / "garbage.tmp").write_text(json.dumps(types))
        (directory / "garbage.tmp").rename(directory / "garbage")

    gc.callbacks.append(note)
    signal.signal(signal.SIGUSR2, tell_garbage)


if __name__ == "__main__":
    _note_collections(Path(sys.argv[1]))
    # The command is that of a module: python -m MODULE ARGUMENT...
    module = sys.argv[4]
    sys.argv = sys.argv[4:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
