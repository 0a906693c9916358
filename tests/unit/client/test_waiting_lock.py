"""A wait that Ctrl-C interrupts holds its lock when it ends."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from spark_kafkalite.client.waiting_lock import waiting_lock
from tests.patience import PATIENCE_S

_CHANCES = 1000


def give_way() -> None:
    """Let the waiting thread come to take the lock again, which is held here."""
    for _ in range(_CHANCES):
        os.sched_yield()


def test_an_interrupted_wait_releases_no_lock_of_another_thread() -> None:
    lock = waiting_lock()
    changed = threading.Condition(lock)
    errors: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        try:
            with lock:
                changed.notify()
                give_way()
                os.kill(os.getpid(), signal.SIGINT)
                give_way()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), lock:
            thread.start()
            changed.wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    assert errors == []
