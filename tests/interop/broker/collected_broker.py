"""Runs a broker that notes its garbage collections.

    python collected_broker.py DIRECTORY COMMAND...

stands before a broker's command. In DIRECTORY/collections each collection is a line: its generation, and its time in
microseconds of the processor. At SIGUSR1 the broker looks at everything for garbage, writes the types that it found as
JSON to DIRECTORY/garbage, and from then on collects nothing, so that the next signal shows all that has come since.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from spark_kafkalite.testing.cluster import BrokerProcess


def command_prefix(directory: Path) -> tuple[str, ...]:
    """Return what stands before the command of a broker that notes its collections here."""
    return (sys.executable, __file__, str(directory))


def longest_ms(directory: Path, first: int = 0) -> float:
    """Return the time of the longest collection, the first so many left out."""
    lines = (directory / "collections").read_text().splitlines()[first:]
    return max((int(line.split()[1]) for line in lines), default=0) / 1000


def collections_so_far(directory: Path) -> int:
    return len((directory / "collections").read_text().splitlines())


def garbage(broker: BrokerProcess, directory: Path) -> collections.Counter[str]:
    """Have the broker look for garbage; return how many objects of which type it found."""
    found = directory / "garbage"
    found.unlink(missing_ok=True)
    os.kill(broker.pid, signal.SIGUSR1)
    until_s = time.monotonic() + 20
    while True:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return collections.Counter(json.loads(found.read_text()))
        assert time.monotonic() < until_s, "the broker does not tell its garbage"
        time.sleep(0.02)


def _note_collections(directory: Path) -> None:
    began_ns = 0
    # Not buffered: the broker may be killed.
    notes = (directory / "collections").open("ab", buffering=0)

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began_ns
        if phase == "start":
            began_ns = time.thread_time_ns()
        else:
            notes.write(b"%d %d\n" % (info["generation"], (time.thread_time_ns() - began_ns) // 1000))

    def tell_garbage(*_: object) -> None:
        gc.disable()
        gc.unfreeze()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        types = collections.Counter(type(one).__qualname__ for one in gc.garbage)
        gc.garbage.clear()
        gc.collect()
        (directory / "garbage").write_text(json.dumps(types))

    gc.callbacks.append(note)
    signal.signal(signal.SIGUSR1, tell_garbage)


if __name__ == "__main__":
    _note_collections(Path(sys.argv[1]))
    # The command is that of a module: python -m MODULE ARGUMENT...
    module = sys.argv[4]
    sys.argv = sys.argv[4:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
