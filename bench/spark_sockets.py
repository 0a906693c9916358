"""Rows a second with ``spark.python.unix.domain.socket.enabled`` (Spark 4.1 and newer) over rows a second without it.

Spark and its Python workers talk over TCP unless that is set. Sessions with and without it take turns in this process;
each reads, streams and writes once for nothing and then once for the figure. "Ours" is with Unix sockets, the "peer" is
the same of ours without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from bench import spark_work
from bench.measurement import Row
from bench.spark_read_write import Bench, fill

SETTING = "spark.python.unix.domain.socket.enabled"
VALUE_BYTES = 100


def rows(quick: bool) -> Iterator[Row]:
    """Measure a read, a stream and a write, 100 B values."""
    count = 600_000 if quick else 5_000_000
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for _ in range(3 if quick else 5):
        for enabled in (False, True):
            with SocketBench(1, {SETTING: str(enabled).lower()}) as bench:
                for what, seconds in bench.seconds(count).items():
                    found[what, enabled].append(count / seconds)
    for what in dict.fromkeys(what for what, _ in found):
        yield Row(
            f"Spark {what}, 100 B values", "rows/s", found[what, True], found[what, False], "TCP sockets", target=1.0
        )


class SocketBench(Bench):
    """The brokers and one session."""

    def seconds(self, count: int) -> dict[str, float]:
        """Return what each takes, after one round for nothing."""
        fill(self.ours, "sockets", count, VALUE_BYTES, "none")
        options = {"kafka.bootstrap.servers": self.ours, "subscribe": "sockets", "startingOffsets": "earliest"}
        frame = self.values(count, VALUE_BYTES, "none")
        measured = {
            "batch read": lambda: self.read("kafkalite", self.ours, "sockets", count),
            "AvailableNow stream into noop": lambda: self.stream("kafkalite", options, count),
            "batch write": lambda: spark_work.write("kafkalite", self.ours, frame),
        }
        return {what: self.in_turn(measure)[0][0] for what, measure in measured.items()}
