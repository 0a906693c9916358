"""SIGTERM, by which YARN, Airflow and init systems ask a job to end: it lets go of what it holds, and then ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_END_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.1


class Stopped(KeyboardInterrupt):
    """SIGTERM came. Py4J closes the connection of the call that it interrupts for this class and its children only."""


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Raise Stopped in the block when SIGTERM comes, once; a job that runs in another thread is not stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        # What the job lets go of is not to be interrupted by who asks twice.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def cancelled_with(spark: SparkSession) -> Iterator[None]:
    """Cancel Spark's jobs when the block is interrupted: otherwise their tasks go on writing for no reader."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):
            spark.sparkContext.cancelAllJobs()
            _await_tasks(spark)
        raise


def _await_tasks(spark: SparkSession) -> None:
    """Wait until no task runs, but no longer than some seconds."""
    until_s = time.monotonic() + _TASKS_END_S
    store: Any = spark._jsc.sc().statusStore()
    while time.monotonic() < until_s:
        executors = store.executorList(True)
        if not any(int(executors.apply(number).activeTasks()) for number in range(executors.size())):
            return
        time.sleep(_LOOK_EVERY_S)
