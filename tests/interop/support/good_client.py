"""A well-behaved client beside the hostile ones, whose answers must not be late; and what the broker's memory peaks at.

Its bounds are wide by default, because the hostile crowd shares the machine's processors.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from spark_kafkalite.testing.batches import make_batch, values_of
from spark_kafkalite.testing.cluster import BrokerProcess
from tests.interop.support.raw_client import RawClient


class GoodClient:
    """Produces and fetches in a thread until it is stopped; keeps its times.

    ``topic`` has to be there, empty and nobody else's.
    """

    def __init__(self, broker: BrokerProcess, topic: str = "good", *, p99_s: float = 0.5, slowest_s: float = 2) -> None:
        """A turn may take ``p99_s`` but for one in a hundred, and none longer than ``slowest_s``."""
        self._topic = topic
        self._allowed_s = (p99_s, slowest_s)
        self._client = RawClient(broker.bootstrap, 30)
        self._written = 0
        self.took_s: list[float] = []
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        for _ in range(100):
            self._turn()

    def __enter__(self) -> GoodClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._client.close()
        assert self._failure is None, self._failure
        ordered = sorted(self.took_s)
        median, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
        print(
            f"{len(ordered)} turns, median {median * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, {ordered[-1] * 1000:.0f} ms"
        )
        assert len(ordered) >= 20
        assert p99 < self._allowed_s[0] and ordered[-1] < self._allowed_s[1]

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
    raise AssertionError("the kernel does not tell the peak of the resident memory")
