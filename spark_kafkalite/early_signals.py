"""Signals that come while a broker or a registry still loads its modules, when nothing handles them.

SIGHUP and SIGUSR1 end a process by default. The command line holds them before it loads anything else; they stay
pending, and are handled as soon as the process can: SIGHUP when it has a handler (:func:`let_through`), SIGUSR1 by
the thread that waits for it (``broker/stacks.py``). What comes even earlier, while the interpreter itself starts, ends
the process.
"""

from __future__ import annotations

import os
import signal

# Whether standard input was the controlling terminal when the signals were held: it may be gone afterwards.
_was_at_terminal = False


def hold() -> None:
    """Keep SIGHUP and SIGUSR1 pending from now on. To be called before there are threads."""
    global _was_at_terminal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGUSR1})
    _was_at_terminal = _is_at_terminal()


def let_through() -> None:
    """Let SIGHUP through to its handler, one that is pending at once. To be called in the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def stdin_is_controlling_terminal() -> bool:
    """Return whether standard input is the controlling terminal. To be asked at the start.

    SIGHUP has two meanings: the terminal is gone, or an administrator wants the settings read again. A process for
    which this is true gets it for the first reason.
    """
    return _was_at_terminal or _is_at_terminal()


def _is_at_terminal() -> bool:
    try:
        os.tcgetpgrp(0)
    except OSError:
        return False
    return True
