"""Rows a second of batch reads, streams and batch writes on the versions of PySpark that the tests run on.

Each version has a session of its own (local[2]) in a process of its own, and all share one broker. The sessions are
measured in turn, after one round that does not count. Each row compares a version with the newest one: the peer is our
own connector there. ``spark_read_write`` compares it with Spark's JVM connector.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.measurement import Row, warm_page_cache
from spark_kafkalite.processes.cluster import BrokerProcess

ROOT = Path(__file__).resolve().parent.parent
# The newest last.
ENVIRONMENTS = (".venv-spark40", ".venv-spark42", ".venv")
READ, STREAM, WRITE = KINDS = ("batch read", "AvailableNow stream into noop", "batch write")
TOPIC = "versions"
VALUE_BYTES = 100
WRITTEN_ROWS = 2_000_000


class Session:
    """The other end of a session's process: it measures one kind of work for each line that it gets."""

    def __init__(self, process: subprocess.Popen[str], count: int) -> None:
        self._process = process
        self._count = count
        self.version = str(self._answer())

    def rate(self, kind: str) -> float:
        """Return the rows a second of one run."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind}\n")
        self._process.stdin.flush()
        return (WRITTEN_ROWS if kind == WRITE else self._count) / float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        # What Spark prints comes before it.
        for line in self._process.stdout:
            if line.startswith("answer: "):
                return json.loads(line.removeprefix("answer: "))
        raise RuntimeError(f"a session ended with exit code {self._process.wait()}")


@contextmanager
def session(environment: str, bootstrap: str, count: int) -> Iterator[Session]:
    """Start a session of one environment; give it when it is ready."""
    python = str(ROOT / environment / "bin" / "python")
    command = [python, "-m", "bench.spark_versions", bootstrap, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield Session(process, count)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def rows(quick: bool) -> Iterator[Row]:
    """Measure all versions; yield a row for each kind of work and each version but the newest."""
    from bench.spark_read_write import REMOVED_AT_ONCE, fill

    count, rounds = (600_000, 3) if quick else (10_000_000, 5)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        broker = stack.enter_context(BrokerProcess(directory, overrides=REMOVED_AT_ONCE))
        warm_page_cache(2 * count * (VALUE_BYTES + 20))
        fill(broker.bootstrap, TOPIC, count, VALUE_BYTES, "none")
        sessions = [stack.enter_context(session(each, broker.bootstrap, count)) for each in ENVIRONMENTS]
        *older, newest = sessions
        for kind in KINDS:
            measured = [[each.rate(kind) for each in sessions] for _ in range(1 + rounds)][1:]
            rates = dict(zip(sessions, zip(*measured, strict=True), strict=True))
            for each in older:
                what = f"{kind}, {VALUE_BYTES} B values, PySpark {each.version}"
                yield Row(what, "rows/s", rates[each], rates[newest], f"PySpark {newest.version}")


def serve(bootstrap: str, count: int) -> None:
    """Measure what standard input names, in a session of this interpreter's PySpark."""
    import pyspark

    from bench import spark_work

    spark = spark_work.local_session({"spark.driver.memory": "2g"})
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    values = spark.range(0, WRITTEN_ROWS, 1, spark_work.PARTITIONS).selectExpr(
        f"cast(repeat('x', {VALUE_BYTES}) AS binary) AS value"
    )
    work: dict[str, Callable[[], float]] = {
        READ: lambda: spark_work.read(spark, "kafkalite", source, count),
        STREAM: lambda: spark_work.stream(spark, "kafkalite", source, count),
        WRITE: lambda: spark_work.write("kafkalite", bootstrap, values),
    }
    print(f"answer: {json.dumps(pyspark.__version__)}", flush=True)
    for line in sys.stdin:
        print(f"answer: {json.dumps(work[line.strip()]())}", flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
