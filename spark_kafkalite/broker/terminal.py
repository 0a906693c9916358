"""Whether a process runs at a terminal, whose end (SIGHUP) is then its own.

SIGHUP has two meanings: the terminal is gone, or an administrator wants the settings read again. A process whose
standard input is its controlling terminal gets it for the first reason.
"""

from __future__ import annotations

from spark_kafkalite import early_signals


def stdin_is_controlling_terminal() -> bool:
    """Return whether standard input is the controlling terminal. To be asked at the start: a terminal that is gone is
    none."""
    return early_signals.was_at_terminal or early_signals.is_at_terminal()
