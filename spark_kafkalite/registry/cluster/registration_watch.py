"""The broker's repeated check of its registration, for as long as a session lasts.

It serves two ends. Each answer proves that the session was alive when the question was sent. A lease on acting alone
consists of such proofs (``on_answer``; rule R6). The connection's own pings show no times. And only this check notices
a registration that was removed, or that belongs to another session.

Each check asks the registry to catch up first (``sync``): a server that is cut off from its ensemble goes on answering
reads, and does not know of a session that has ended elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import ConnectionLoss, SessionExpired, Store, answer

_LOG = logging.getLogger(__name__)

# Looks in the time after which the registry ends a silent session.
_LOOKS_IN_A_SESSION: Final = 6
# How soon to look again when the connection broke in the middle.
_AGAIN_S: Final = 0.1
# After as long without an answer, that is logged.
_SAY_S: Final = 60.0

# Gets when the question was sent (seconds of Clock.monotonic_s), and the session's granted timeout in milliseconds.
OnAnswer = Callable[[float, int], None]


class RegistrationGone(RegistryError):
    """This broker's registration is not there any more, although its session lives."""


class RegistrationWatch:
    """See the module's text. Lives in one event loop, and with one session."""

    def __init__(self, store: Store, broker_id: BrokerId, clock: Clock, on_answer: OnAnswer) -> None:
        self._store = store
        self._path = znodes.broker_path(broker_id)
        self._clock = clock
        self._on_answer = on_answer
        self._answered_s = clock.monotonic_s()
        self._quiet = QuietLog.of_states(_LOG, clock.monotonic_s)

    async def run(self) -> None:
        """Look until the session ends. Raises RegistrationGone."""
        every_s = self._store.session_timeout_ms / 1000 / _LOOKS_IN_A_SESSION
        while True:
            began_s = self._clock.monotonic_s()
            look = asyncio.ensure_future(self.look())
            try:
                while not (await asyncio.wait((look,), timeout=every_s))[0]:
                    self._say_silence()
                look.result()
            except ConnectionLoss:
                await asyncio.sleep(min(every_s, _AGAIN_S))
                continue
            except SessionExpired:
                return
            finally:
                look.cancel()
            # At once after one that was long under way: its answer says nothing of the time since.
            await asyncio.sleep(max(every_s - (self._clock.monotonic_s() - began_s), 0))

    async def look(self) -> None:
        """Look once. Raises RegistrationGone, ConnectionLoss, SessionExpired."""
        sent_s = self._clock.monotonic_s()
        # Cancelled or failed, neither leaves an error that nobody asks for.
        _, stat = await asyncio.gather(answer(self._store.sync()), answer(self._store.exists(self._path)))
        if stat is None or stat.ephemeral_owner != self._store.session_id:
            whose = "is gone" if stat is None else f"belongs to another session ({stat.ephemeral_owner:#x})"
            raise RegistrationGone(f"registry node {self._path} {whose}, although this broker's session lives")
        self._answered_s = self._clock.monotonic_s()
        self._on_answer(sent_s, self._store.session_timeout_ms)

    def _say_silence(self) -> None:
        silent_s = self._clock.monotonic_s() - self._answered_s
        if silent_s >= _SAY_S:
            self._quiet.log(
                logging.WARNING,
                "silence",
                "the registry has not answered for %.0f s; what this broker leads is served for acks=all, other "
                "requests wait for the registry or are refused",
                silent_s,
            )
