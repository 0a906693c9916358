"""A broker that gets SIGTERM while it recovers its logs stops in the middle of it, and loses nothing by it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from spark_kafkalite.broker.server import Broker
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.client.consume.consumer import Consumer
from spark_kafkalite.client.produce.producer import Producer
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until

LOGS = 40


class _Fs(OsFs):
    """The first read of a segment while logs are loaded sends SIGTERM, and ends when the load is interrupted."""

    def __init__(self) -> None:
        self.is_interrupted = threading.Event()
        # The segments that were read while logs were loaded.
        self.read: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        opened = super().open(path, create=create)
        file = _File(path, os.dup(opened.fileno()))
        file.fs = self
        return file


class _File(OsFile):
    fs: _Fs

    def pread(self, length: int, position: int) -> bytes:
        if self.path.endswith(".log") and threading.current_thread().name.startswith("kafkalite-load"):
            self.fs.read.add(self.path)
            if len(self.fs.read) == 1 and not self.fs.is_interrupted.is_set():
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
                os.kill(os.getpid(), signal.SIGTERM)
                assert self.fs.is_interrupted.wait(PATIENCE_S), "SIGTERM does not interrupt the load"
        return super().pread(length, position)


def test_stop_is_heard_during_a_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = _Fs()
    interrupt = LogManager.interrupt_load

    def interrupt_load(self: LogManager) -> None:
        interrupt(self)
        fs.is_interrupted.set()

    monkeypatch.setattr(LogManager, "interrupt_load", interrupt_load)
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
        exit_code = asyncio.run(Broker(config, fs=fs).run(ready.append))
        assert (exit_code, ready) == (0, [])
        assert 0 < len(fs.read) < LOGS / 4, "the recovery went on"
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        assert f"the last stop was not clean: {LOGS} of {LOGS} logs" in broker.stderr_path.read_text()
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([("t", number) for number in range(LOGS)])
            consumer.seek_to_beginning()
            values: set[bytes | None] = set()

            def has_all() -> bool:
                values.update(record.value for record in consumer.poll(timeout_ms=500))
                return len(values) == LOGS

            wait_until(has_all, "a value of each log")
        assert values == {b"value of %d" % number for number in range(LOGS)}
