"""Signals that come while a broker or a registry still loads its modules, when nothing handles them.

SIGHUP and SIGUSR1 end a process by default. The command line holds them before it loads anything else; they stay
pending, and are handled as soon as the process can: SIGHUP when it has a handler (:func:`let_through`), SIGUSR1 by
the thread that waits for it (``broker/stacks.py``). What comes even earlier, while the interpreter itself starts, ends
the process.
"""

from __future__ import annotations

import os
import signal

# Whether the terminal was there when SIGHUP was held: it may be gone when somebody asks.
was_at_terminal = False


def hold() -> None:
    """Keep SIGHUP and SIGUSR1 pending from now on. To be called before there are threads."""
    global was_at_terminal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGUSR1})
    was_at_terminal = is_at_terminal()


def let_through() -> None:
    """Let SIGHUP through to its handler, one that is pending at once. To be called in the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def is_at_terminal() -> bool:
    """Return whether standard input is the controlling terminal."""
    try:
        os.tcgetpgrp(0)
    except OSError:
        return False
    return True
