"""A load that can be checked to the last record: a producer, a group that reads, an administrator.

The number of a record in its partition is its key, and its offset too, so that a reader sees at once what is lost,
doubled or out of order.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from spark_kafkalite import Admin, Consumer, Producer
from tests.patience import PATIENCE_S, wait_until

PARTITIONS = 4
_ROWS = 400
_VALUE = b"v" * 100


class NumberedLoad:
    """Clients of ``settings`` on a new topic, from :meth:`start` to :meth:`finish`."""

    def __init__(self, settings: Mapping[str, object], topic: str, replicas: int = 1, *, pause_s: float = 0.0) -> None:
        """``pause_s`` is how long the producer pauses when each partition has got its records: a load that lasts for
        long would take a processor otherwise."""
        self._settings = settings
        self._replicas = replicas
        self._pause_s = pause_s
        self._topic = topic
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(3)
        self._parts: list[Future[None]] = []
        self._produced: Future[None] | None = None
        # Records in each partition, and answers to the administrator.
        self.sent = 0
        self.read = [0] * PARTITIONS
        self.answers = 0

    def start(self) -> None:
        """Return when every client has done its work once."""
        with Admin(self._settings) as admin:
            admin.create_topic(self._topic, PARTITIONS, self._replicas)
        self._produced = self._pool.submit(self._produce)
        self._parts = [self._produced, self._pool.submit(self._consume), self._pool.submit(self._administer)]
        self.wait_until(lambda: self.sent > 0 and all(self.read) and self.answers > 0)

    def run_for(self, seconds: float) -> None:
        """Let the clients work. Raises what a client has raised."""
        self._stop.wait(seconds)
        self._raise_failure()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition. Raises what a client has raised."""

        def holds() -> bool:
            self._raise_failure()
            return condition()

        wait_until(holds, lambda: f"{self.sent} records sent, {self.read} read, {self.answers} answers")

    def _raise_failure(self) -> None:
        for part in self._parts:
            # An AssertionError would be taken for something that is still to come.
            if part.done() and (error := part.exception()) is not None:
                raise RuntimeError("a client has failed") from error

    def finish(self) -> None:
        """Send no more, and wait until all is read. Raises what a client has raised."""
        self._stop.set()
        with self._pool:
            for part in self._parts:
                part.result(PATIENCE_S)
        assert self.read == [self.sent] * PARTITIONS

    def _produce(self) -> None:
        values = pa.array([_VALUE] * _ROWS, pa.binary())
        # Small batches and little memory: many requests, and always as many in flight as may be.
        with Producer(self._settings, batch_size=8192, buffer_memory=1 << 20) as producer:
            sent = 0
            while not self._stop.wait(self._pause_s):
                for partition in range(PARTITIONS):
                    rows = {"key": numbers(sent, _ROWS), "value": values, "partition": [partition] * _ROWS}
                    producer.send_batch(self._topic, pa.table(rows))
                sent += _ROWS
                self.sent = sent

    def _consume(self) -> None:
        assert self._produced is not None
        with Consumer(
            self._settings, group_id=self._topic, auto_offset_reset="earliest", auto_commit_interval_ms=500
        ) as consumer:
            consumer.subscribe([self._topic])
            while not (self._produced.done() and self.read == [self.sent] * PARTITIONS):
                rows = consumer.poll_columns(500)
                if rows is None:
                    continue
                partition = rows.column("partition")[0].as_py()
                expected = self.read[partition]
                if not rows.column("key").equals(numbers(expected, rows.num_rows)):
                    found = [int.from_bytes(key.as_py(), "little") for key in rows.column("key")]
                    raise AssertionError(
                        f"partition {partition}: {expected} expected, found {found[:5]}...{found[-5:]}"
                    )
                self.read[partition] += rows.num_rows

    def _administer(self) -> None:
        with Admin(self._settings) as admin:
            while not self._stop.wait(0.05):
                assert self._topic in admin.list_topics()
                self.answers += 1


def numbers(first: int, count: int) -> pa.Array:
    """Return the numbers from ``first`` on as binary values of eight bytes."""
    content = pa.py_buffer(array("q", range(first, first + count)))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), count, [None, content]).cast(pa.binary())
