"""``metrics.listener``: /metrics, /livez, /readyz and /status of one broker over HTTP.

It answers from the beginning of the start, before the logs are loaded, to the end of the stop. Beyond loopback it needs
a token (``metrics.token.file``) or the operator's permission (``metrics.listener.insecure``). The probes need no token:
an orchestrator has none, and the probes show only whether the broker serves. On loopback a page in a browser may send
requests under another name of this host (DNS rebinding). So a Host header must be an address or localhost there.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.broker.metrics import families
from spark_kafkalite.broker.metrics.exposition import CONTENT_TYPE, Page
from spark_kafkalite.broker.metrics.health import BrokerHealth
from spark_kafkalite.broker.metrics.http import HttpRequest, HttpResponse, HttpServer
from spark_kafkalite.broker.metrics.listener import TOKEN_FILE, MetricsListener, read_token
from spark_kafkalite.broker.metrics.meters import Meters
from spark_kafkalite.broker.network.listeners import address_text
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.slices import Slices, Work
from spark_kafkalite.version import VERSION

if TYPE_CHECKING:
    from spark_kafkalite.broker.context import BrokerContext
    from spark_kafkalite.broker.network.acceptor import Acceptor
    from spark_kafkalite.broker.replication.replication import Replication
    from spark_kafkalite.log.manager import LogManager

# A page serves all scrapes that come while it is made, and this long afterwards.
_FRESH_S: Final = 1.0


class MetricsEndpoint:
    """Serves a broker's metrics and health. Parts of the broker are set as the start makes them."""

    def __init__(
        self, listener: MetricsListener, meters: Meters, health: BrokerHealth, slices: Slices, broker_id: int
    ) -> None:
        self.meters = meters
        self.health = health
        self.logs: LogManager | None = None
        self._broker: tuple[BrokerContext, Acceptor, Replication] | None = None
        self.address = ""
        self._listener = listener
        self._slices = slices
        self._broker_id = broker_id
        self._server = HttpServer(self._answer)
        self._began_s = time.time()
        self._page: asyncio.Task[bytes] | None = None
        self._made_s = 0.0
        self._dropped = 0

    def serve_broker(self, context: BrokerContext, acceptor: Acceptor, replication: Replication) -> None:
        """Show what the whole broker knows, from now on."""
        self._broker = context, acceptor, replication
        self.health.is_registered = lambda: context.membership.is_connected

    async def start(self) -> None:
        """Listen. Raises ConfigError when the address cannot be listened on."""
        host, port = self._listener.host, self._listener.port
        try:
            self.address = address_text(host, await self._server.start(host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"metrics.listener={address_text(host, port)}: cannot listen: {reason}") from error
        self.meters.loop.start()

    async def stop(self) -> None:
        """Close the address."""
        self.meters.loop.stop()
        await self._server.stop()
        if self._page is not None:
            self._page.cancel()

    # Answers --------------------------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if self._listener.is_loopback and not _is_own_host(request.headers.get("host", "localhost")):
            return _json(HTTPStatus.MISDIRECTED_REQUEST, {"error": "ask by an address or by localhost"})
        if request.path == "/livez":
            # The loop turns, or it would not answer.
            return _json(HTTPStatus.OK, {"live": True})
        if request.path == "/readyz":
            reasons = self.health.why_not_ready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            return _json(status, {"ready": not reasons, "reasons": reasons})
        if request.path not in ("/metrics", "/status"):
            return _json(HTTPStatus.NOT_FOUND, {"error": "there are /metrics, /status, /livez and /readyz"})
        if not self._may_read(request):
            answer = _json(HTTPStatus.UNAUTHORIZED, {"error": f"send the token of {TOKEN_FILE} as a bearer token"})
            return HttpResponse(answer.status, answer.body, headers=(("WWW-Authenticate", "Bearer"),))
        if request.path == "/status":
            return _json(HTTPStatus.OK, self._status())
        return HttpResponse(HTTPStatus.OK, await self._scraped(), CONTENT_TYPE)

    def _may_read(self, request: HttpRequest) -> bool:
        path = self._listener.token_file
        if path is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            # Read each time: it may be replaced while the broker runs.
            token = read_token(path)
        except ConfigError:
            return False
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "brokerId": self._broker_id,
            "version": VERSION,
            "brokerState": int(self.health.state),
            "brokerStateName": self.health.state.name,
            "recoveryState": {"remainingLogsToRecover": self._remaining_logs()},
            "reasonsNotReady": self.health.why_not_ready(),
        }
        if self._broker is not None:
            context, _, _ = self._broker
            found |= {
                "clusterId": context.cluster.cluster_id,
                "controllerId": context.cluster.controller_id,
                "registryConnected": context.membership.is_connected,
                "partitions": len(context.replicas),
                "leaders": sum(1 for partition in context.replicas if partition.is_leader),
            }
        return found

    def _remaining_logs(self) -> int:
        return 0 if self.logs is None else self.logs.remaining_logs

    # Scrapes --------------------------------------------------------------------------------------------------------

    async def _scraped(self) -> bytes:
        now_s = asyncio.get_running_loop().time()
        page = self._page
        if page is None or (page.done() and (page.cancelled() or page.exception() or now_s > self._made_s + _FRESH_S)):
            page = self._page = asyncio.ensure_future(self._made())
        # A scraper that goes away takes nothing from the others.
        return await asyncio.shield(page)

    async def _made(self) -> bytes:
        text = await self._slices.run(self._written())
        self._made_s = asyncio.get_running_loop().time()
        return text

    def _written(self) -> Work[bytes]:
        page = Page(self._listener.max_series)
        meters = self.meters
        families.state(page, int(self.health.state), self._remaining_logs(), VERSION)
        families.process(page, meters, self._began_s)
        yield None
        families.requests(page, meters)
        if self.logs is not None:
            families.disks(page, self.logs.directories)
        yield None
        if self._broker is not None:
            context, acceptor, replication = self._broker
            families.registry(page, context)
            families.connections(page, acceptor, context.listeners)
            families.served(page, context)
            families.groups(page, context.groups)
            yield from families.controller(page, context.cluster, self._broker_id)
            yield from families.partitions(page, context.replicas, replication)
        yield from families.topics(page, meters)
        self._dropped += page.dropped
        text = "Series that a scrape left out because of metrics.max.series."
        page.one("kafkalite_metrics_dropped_series_total", "counter", text, self._dropped)
        yield None
        return page.text().encode()


def _json(status: HTTPStatus, document: dict[str, Any]) -> HttpResponse:
    return HttpResponse(status, (json.dumps(document) + "\n").encode())


def _is_own_host(host: str) -> bool:
    """Return whether a Host header names an address, or localhost."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
