"""Named points of a run at which tests stop, kill or fail a job, so that a crash is where they want it.

The environment variable ``KAFKALITE_JOB_FAULT`` is ``POINT:ACTION``, or ``POINT:ACTION:N`` for the N-th time that the
run passes the point; several with commas. Actions: ``kill`` (SIGKILL to the driver's Python process), ``stop``
(SIGSTOP; the run goes on at SIGCONT) and ``raise`` (FaultInjected). Without the variable a point costs a look into the
environment.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

from spark_kafkalite.errors import ConfigError

VARIABLE: Final = "KAFKALITE_JOB_FAULT"
POINTS: Final = (
    "planned",  # the plan is written, nothing is read
    "staging",  # Spark has written the files, nobody has looked at them
    "staged",  # before the manifest
    "manifest",  # after the manifest, before the first move
    "moved-one",  # after every move
    "recovery",  # before the fence, after it, and after every directory that a recovery deletes
    "table-begun",  # the marks of new tables are written, before the manifest
    "table-commit",  # before every commit to a table
    "table-committed",  # after it, before the table's mark
    "table-resync",  # the mark of a table that is made again is written; its old log is set aside
    "compaction",  # merged files are written, nobody has looked at them; after every file that leaves for them
)
_ACTIONS: Final = ("kill", "stop", "raise")

_passed: Counter[str] = Counter()


class FaultInjected(Exception):
    """The error that ``raise`` raises. It is not a KafkaliteError, so no code handles it as one that it knows."""


def fault_point(name: str) -> None:
    """Do what the environment asks for at this point. Raises ConfigError for a request that cannot be read."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return
    for each in asked.split(","):
        point, _, rest = each.strip().partition(":")
        action, _, times = rest.partition(":")
        if point not in POINTS or action not in _ACTIONS or not (times or "1").isdecimal():
            raise ConfigError(
                f"{VARIABLE}={asked}: {each!r} is not POINT:ACTION[:N] with a point of {', '.join(POINTS)} and an "
                f"action of {', '.join(_ACTIONS)}"
            )
        if point == name:
            _passed[each] += 1
            if _passed[each] == int(times or "1"):
                _act(action, name)


def forget_passed() -> None:
    """Count from one again, for another run in the same process."""
    _passed.clear()


def _act(action: str, name: str) -> None:
    if action == "raise":
        raise FaultInjected(f"{VARIABLE} asks for an error at {name}")
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
