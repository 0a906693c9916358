"""The exporter as a process: one event loop that serves pages, and a thread that asks the cluster for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final

from spark_kafkalite.addresses import address_text
from spark_kafkalite.errors import ConfigError, KafkaliteError
from spark_kafkalite.exposition.access import PageAccess
from spark_kafkalite.exposition.http import HttpRequest, HttpResponse, HttpServer, json_response
from spark_kafkalite.exposition.shared import SharedPage
from spark_kafkalite.exposition.text import CONTENT_TYPE

_LOG: Final = logging.getLogger("spark_kafkalite.exporter")


class ExporterServer:
    """Serves ``/metrics`` and ``/livez``. ``scrape`` returns a page, compressed by gzip; it is called in a thread."""

    def __init__(self, access: PageAccess, scrape: Callable[[], bytes]) -> None:
        self._access = access
        self._scrape = scrape
        # One thread: a scraper that asks while a page is made gets that page.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafkalite-exporter")
        self._page = SharedPage(self._made)
        self._told = ""

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; call ``ready`` with the address. Raises ConfigError when it cannot listen."""
        access = self._access
        server = HttpServer(self._answer)
        try:
            port = await server.start(access.host, access.port)
        except OSError as error:
            where = f"{access.names.address}={address_text(access.host, access.port)}"
            raise ConfigError(f"{where}: cannot listen: {error.strerror or error}") from error
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        try:
            ready(address_text(access.host, port))
            await stopping.wait()
        finally:
            self._page.cancel()
            await server.stop()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if (refusal := self._access.wrong_host(request)) is not None:
            return refusal
        if request.path == "/livez":
            return json_response(HTTPStatus.OK, {"live": True})
        if request.path != "/metrics":
            return json_response(HTTPStatus.NOT_FOUND, {"error": "there are /metrics and /livez"})
        if (refusal := self._access.refusal(request)) is not None:
            return refusal
        try:
            page = await self._page.get()
        except KafkaliteError as error:
            # Prometheus then sees that the target is down.
            self._tell(str(error))
            return json_response(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
        except Exception:
            _LOG.exception("a scrape failed")
            return json_response(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "a scrape failed; see the exporter's log"})
        self._tell("")
        return HttpResponse(HTTPStatus.OK, page, CONTENT_TYPE, is_packed=True)

    async def _made(self) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._scrape)

    def _tell(self, problem: str) -> None:
        """Log that scrapes fail, and that they do not any more, once each."""
        if problem and not self._told:
            _LOG.warning("scrapes fail: %s", problem)
        elif self._told and not problem:
            _LOG.warning("scrapes succeed again")
        self._told = problem


def serve(server: ExporterServer, ready: Callable[[str], None]) -> None:
    """Run a server in an event loop of its own."""
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(server.run(ready))
