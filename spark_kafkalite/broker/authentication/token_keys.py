"""The keys of one issuer of tokens, as a broker knows them now; a thread fetches them.

They are fetched at the start, in intervals, and when a token names a key that is not known: issuers change their keys.
Any client can send tokens with names that do not exist. So such a fetch begins only when the last one ended
``retry.backoff.max.ms`` ago, and one fetch serves all clients that wait.

Without keys every token is refused. When keys cannot be fetched again, those that are known stay in use.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.security.key_source import KeySource
from spark_kafkalite.security.signing_keys import KeySet, SigningKey

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)


class TokenKeys:
    """See the module's text. Lives in one event loop."""

    def __init__(self, source: KeySource, loop: asyncio.AbstractEventLoop, io: IoThreads) -> None:
        self._source = source
        self._loop = loop
        self._io = io
        self._keys = KeySet()
        self._task: asyncio.Task[None] | None = None
        # Set at the end of the present fetch; None between fetches. Clients wait for it, in any number.
        self._end: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        # How long to wait after the next failure, and when the last fetch ended.
        self._backoff_s = source.backoff_s
        self._ended_s = -math.inf

    def start(self) -> None:
        """Begin to fetch the keys.

        Raises ConfigError for files that cannot be used (:meth:`KeySource.check`). An identity provider that cannot be
        reached is no such error: no broker would start meanwhile.
        """
        self._source.check()
        self._fetch_now()

    def stop(self) -> None:
        """Fetch no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def find(self, name: str) -> Sequence[SigningKey]:
        """Return the keys with this id; none if there are none. May wait for a fetch, which takes some seconds."""
        found = self._keys.keys.get(name)
        is_due = self._loop.time() >= self._ended_s + self._source.backoff_max_s
        if found is None and (self._end is not None or is_due):
            await self._fetch_now().wait()
            found = self._keys.keys.get(name)
        return found or ()

    def _fetch_now(self) -> asyncio.Event:
        """Begin to fetch unless a fetch is under way; return the event of its end."""
        if self._end is None:
            if self._timer is not None:
                self._timer.cancel()
            self._end = asyncio.Event()
            self._task = self._loop.create_task(self._fetch(self._end))
        return self._end

    async def _fetch(self, end: asyncio.Event) -> None:
        again_s = self._source.refresh_s
        try:
            keys = await self._io.run(self._source.fetch, Lane.KEYS)
        except Exception as error:
            again_s = min(self._backoff_s, again_s)
            self._backoff_s = min(self._backoff_s * 2, self._source.backoff_max_s)
            remains = "the keys fetched before stay in use" if self._keys.keys else "no client can authenticate by it"
            _quiet.log(logging.WARNING, "unavailable", "keys of tokens cannot be fetched: %s; %s", error, remains)
        else:
            self._backoff_s = self._source.backoff_s
            self._take(keys)
        finally:
            self._end = None
            end.set()
            self._ended_s = self._loop.time()
        self._timer = self._loop.call_later(again_s, self._fetch_now)

    def _take(self, keys: KeySet) -> None:
        for problem in keys.problems if keys.problems != self._keys.problems else ():
            logger.warning("%s: left out: %s", self._source, problem)
        if keys.keys.keys() != self._keys.keys.keys():
            logger.info("%s: tokens are verified by %d keys", self._source, len(keys.keys))
        self._keys = keys
