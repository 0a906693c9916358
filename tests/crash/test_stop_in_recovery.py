"""A broker that is told to stop while it recovers its logs stops at once, and loses nothing by it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

from spark_kafkalite.broker.server import Broker
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.client.consume.consumer import Consumer
from spark_kafkalite.client.produce.producer import Producer
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.testing.cluster import BrokerProcess

LOGS = 40
_SLOW_READ_S = 0.5


class _SlowFile(OsFile):
    """Reads of segments take long, and the first one makes somebody lose patience."""

    def pread(self, length: int, position: int) -> bytes:
        if self.path.endswith(".log"):
            if threading.current_thread().name.startswith("kafkalite-load"):
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_SLOW_READ_S)
        return super().pread(length, position)


class _SlowFs(OsFs):
    def open(self, path: str, *, create: bool = False) -> OsFile:
        file = super().open(path, create=create)
        return _SlowFile(path, os.dup(file.fileno()))


def test_stop_is_heard_during_a_recovery(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t", LOGS)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(LOGS):
                producer.send("t", b"value of %d" % number, partition=number)
        broker.kill()
        config = BrokerConfig.load(
            None, {"log.dirs": str(tmp_path / "data"), "listeners": f"PLAINTEXT://127.0.0.1:{broker.port}"}
        )
        ready: list[str] = []
        began = time.monotonic()
        exit_code = asyncio.run(Broker(config, fs=_SlowFs()).run(ready.append))
        took_s = time.monotonic() - began
        assert (exit_code, ready) == (0, [])
        assert took_s < LOGS * _SLOW_READ_S / 4, "the recovery was not interrupted"
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        assert f"the last stop was not clean: {LOGS} of {LOGS} logs" in broker.stderr_path.read_text()
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([("t", number) for number in range(LOGS)])
            consumer.seek_to_beginning()
            values: set[bytes | None] = set()
            deadline = time.monotonic() + 20
            while len(values) < LOGS and time.monotonic() < deadline:
                values.update(record.value for record in consumer.poll(timeout_ms=500))
        assert values == {b"value of %d" % number for number in range(LOGS)}
