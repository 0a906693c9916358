"""Has the contexts of TLS made again when a key or trust store changes, so that certificates are renewed without a
restart.

A thread checks the files every few seconds, and at once when the settings change or at SIGHUP. New contexts are
checked as at the start, and take the place of the old ones as a whole: for new connections of clients, and of this
broker to others. Open connections stay as they are. A store that cannot be used is logged, and changes nothing.

A change of the settings by AlterConfigs is refused beforehand if what it names cannot be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from spark_kafkalite.broker.network.listener_tls import BrokerTls, Contexts, ListenerTls
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.net.io_threads import IoThreads, Lane

logger = logging.getLogger(__name__)

# How often the files are checked: Kafka's users count on a minute, and stat(2) costs nothing.
_LOOK_S: Final = 10.0
# How often an operator is warned of a certificate that ends within a week, or has ended.
_WARN_S: Final = 86_400.0


class TlsReload:
    """See the module's text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: BrokerTls, settings: DynamicConfig, io: IoThreads) -> None:
        self._loop = loop
        self._tls = tls
        self._settings = settings
        self._io = io
        self._wanted = asyncio.Event()
        # What has been logged of each listener, and is not logged again.
        self._said: dict[str, str] = {}
        # The start has warned already.
        self._warned_s = loop.time()
        self._task = loop.create_task(self._run()) if tls.listeners else None
        if tls.listeners:
            settings.add_listener(lambda _, __: self.soon())
            settings.add_check(self.check)

    def soon(self) -> None:
        """Check the files now, and log again what is wrong with them."""
        self._said.clear()
        self._wanted.set()

    def stop(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()

    def check(self, config: BrokerConfig) -> None:
        """Raise ConfigError if the settings name a key or trust store that cannot be used."""
        for listener in self._tls.listeners.values():
            if listener.values(config.values) != listener.values(self._settings.current.values):
                listener.made(config.values, instead_of=listener.contexts)
        # The same name may stand for another file.
        self.soon()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wanted.wait()
            self._wanted.clear()
            for listener in self._tls.listeners.values():
                try:
                    await self._look(listener)
                except Exception:
                    logger.exception("listener %s: its certificates cannot be checked", listener.listener.name)
            if self._loop.time() - self._warned_s >= _WARN_S:
                self._warned_s = self._loop.time()
                for warning in self._tls.warnings():
                    logger.warning("%s", warning)

    async def _look(self, listener: ListenerTls) -> None:
        name, values = listener.listener.name, self._settings.current.values
        try:
            contexts = await self._io.run(partial(_made_if_other, listener, values), Lane.FILES)
        except ConfigError as error:
            self._say(name, f"the certificates cannot be replaced, and the present ones stay: {error}")
            return
        if contexts is None:
            return
        listener.contexts = contexts
        self._said.pop(name, None)
        logger.info("listener %s: new connections have the certificates that have changed", name)
        for warning in listener.warnings():
            logger.warning("%s", warning)

    def _say(self, name: str, text: str) -> None:
        if self._said.get(name) != text:
            self._said[name] = text
            logger.error("%s", text)


def _made_if_other(listener: ListenerTls, values: Mapping[str, Any]) -> Contexts | None:
    """Return new contexts, None when they would be those that there are. Raises ConfigError."""
    if listener.is_made_of(values):
        return None
    return listener.made(values, instead_of=listener.contexts)
