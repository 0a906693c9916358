"""What is logged of certificates while a broker runs, and what a look at unchanged files does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.broker import tls_reload
from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.tls_reload import TlsReload
from tests.lab.certificates import LOOPBACK, Authority
from tests.patience import wait_until_async


class Io:
    """Does in the loop what threads do."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, work: Any, _: Any) -> Any:
        self.runs += 1
        return work()


def test_the_end_of_a_certificate_is_warned_of_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_reload, "_LOOK_S", 0.0)
    store = Authority(tmp_path, "ours").issue("broker", *LOOPBACK, days=3).pem_file()
    config = BrokerConfig.from_properties({"listeners": "SSL://127.0.0.1:1", "ssl.keystore.location": store})

    async def run() -> None:
        tls, io = BrokerTls(config), Io()
        before = tls.listeners["SSL"].contexts
        reload = TlsReload(asyncio.get_running_loop(), tls, DynamicConfig(config), io)  # type: ignore[arg-type]
        await wait_until_async(lambda: io.runs > 5, "several looks")
        assert "the certificate ends on" not in caplog.text
        monkeypatch.setattr(tls_reload, "_WARN_S", 0.0)
        await wait_until_async(lambda: caplog.text.count("the certificate ends on") > 1, "the warning, twice")
        # The files have not changed.
        assert tls.listeners["SSL"].contexts is before
        reload.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
