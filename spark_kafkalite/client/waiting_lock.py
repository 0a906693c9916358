"""The lock of a condition that a user's thread waits on, and that Ctrl-C may interrupt."""

from __future__ import annotations

import threading


def waiting_lock() -> threading.RLock:
    """Return a lock for :class:`threading.Condition` that an interrupted wait always has when it ends.

    A wait takes the lock again before it raises. With a plain Lock, KeyboardInterrupt ends that, too. The ``with``
    around the wait then releases a lock that another thread holds. An RLock is taken without interruption, and only its
    holder can release it.
    """
    return threading.RLock()
