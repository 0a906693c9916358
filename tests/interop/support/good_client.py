"""A well-behaved client next to the hostile ones, which goes on all the time; and what the broker's memory peaks at.

``bench/latency.py`` measures how long its turns take next to them.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until


class GoodClient:
    """Produces and fetches in a thread until it is stopped, checks every answer, and keeps the times of its turns.

    ``topic`` has to exist and to be empty, and no other client may use it.
    """

    def __init__(self, broker: BrokerProcess, topic: str = "good") -> None:
        self._topic = topic
        self._client = RawClient(broker.bootstrap, PATIENCE_S)
        self._written = 0
        self.took_s: list[float] = []
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        for _ in range(20):
            self._turn()

    def __enter__(self) -> GoodClient:
        self._thread.start()
        return self

    def goes_on(self, turns: int = 20) -> None:
        """Wait until it has had so many turns more: none of what the other clients do now keeps it waiting."""
        before = len(self.took_s)
        wait_until(
            lambda: self._failure is not None or len(self.took_s) >= before + turns,
            lambda: f"{turns} more turns of the good client, it has had {len(self.took_s) - before}",
        )
        self._raise_failure()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        self._client.close()
        self._raise_failure()
        assert not self._thread.is_alive(), "the good client waits for an answer"

    def _raise_failure(self) -> None:
        assert self._failure is None, repr(self._failure)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.took_s.append(self._turn())
                time.sleep(0.003)
        except BaseException as error:
            self._failure = error

    def _turn(self) -> float:
        value = b"good %d" % self._written
        batch = make_batch([value], timestamp_ms=time.time_ns() // 1_000_000)
        began = time.monotonic()
        produced = self._client.produce(self._topic, batch)
        assert (produced.error_code, produced.base_offset) == (0, self._written)
        fetched = self._client.fetch(self._topic, self._written, max_wait_ms=0)
        took_s = time.monotonic() - began
        assert values_of(fetched.records) == [(self._written, value)]
        self._written += 1
        return took_s


def forget_peak(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(broker: BrokerProcess) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not report the peak of the resident memory")
