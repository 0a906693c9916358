"""``metrics.listener``: /metrics, /livez, /readyz and /status of one broker over HTTP.

It answers from the beginning of the start, before the logs are loaded, to the end of the stop. Beyond loopback it needs
a token (``metrics.token.file``) or the operator's permission (``metrics.listener.insecure``). The probes need no token:
an orchestrator has none, and the probes show only whether the broker serves.
"""

from __future__ import annotations

import asyncio
import math
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from spark_kafkalite.addresses import address_text
from spark_kafkalite.broker.metrics import client_families, families
from spark_kafkalite.broker.metrics.health import BrokerHealth
from spark_kafkalite.broker.metrics.listener import MetricsListener
from spark_kafkalite.broker.metrics.meters import Meters
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.exposition.http import HttpRequest, HttpResponse, HttpServer, gzip, json_response
from spark_kafkalite.exposition.shared import SharedPage
from spark_kafkalite.exposition.text import CONTENT_TYPE, Page
from spark_kafkalite.slices import Slices, Work
from spark_kafkalite.version import VERSION

if TYPE_CHECKING:
    from spark_kafkalite.broker.context import BrokerContext
    from spark_kafkalite.broker.network.acceptor import Acceptor
    from spark_kafkalite.broker.replication.replication import Replication
    from spark_kafkalite.broker.upkeep.cleaner import Cleaner
    from spark_kafkalite.log.manager import LogManager


class MetricsEndpoint:
    """Serves a broker's metrics and health. Parts of the broker are set as the start makes them."""

    def __init__(
        self, listener: MetricsListener, meters: Meters, health: BrokerHealth, slices: Slices, broker_id: int
    ) -> None:
        self.meters = meters
        self.health = health
        self.logs: LogManager | None = None
        self.cleaner: Cleaner | None = None
        self._broker: tuple[BrokerContext, Acceptor, Replication] | None = None
        self.address = ""
        self._access = listener.access
        self._max_series = listener.max_series
        self._slices = slices
        self._broker_id = broker_id
        self._server = HttpServer(self._answer)
        self._began_s = time.time()
        self._page = SharedPage(self._made)
        self._dropped = 0
        self._quotas = client_families.QuotaFamilies()

    def serve_broker(self, context: BrokerContext, acceptor: Acceptor, replication: Replication) -> None:
        """Show what the whole broker knows, from now on."""
        self._broker = context, acceptor, replication
        self.health.is_registered = lambda: context.membership.is_connected

    async def start(self) -> None:
        """Listen. Raises ConfigError when the address cannot be listened on."""
        host, port = self._access.host, self._access.port
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
        self._page.cancel()

    # Answers --------------------------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if (refusal := self._access.wrong_host(request)) is not None:
            return refusal
        if request.path == "/livez":
            # The loop turns, or it would not answer.
            return json_response(HTTPStatus.OK, {"live": True})
        if request.path == "/readyz":
            reasons = self.health.why_not_ready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            return json_response(status, {"ready": not reasons, "reasons": reasons})
        if request.path not in ("/metrics", "/status"):
            return json_response(HTTPStatus.NOT_FOUND, {"error": "there are /metrics, /status, /livez and /readyz"})
        if (refusal := self._access.refusal(request)) is not None:
            return refusal
        if request.path == "/status":
            return json_response(HTTPStatus.OK, self._status())
        return HttpResponse(HTTPStatus.OK, await self._page.get(), CONTENT_TYPE, is_packed=True)

    def _status(self) -> dict[str, Any]:
        meters = self.meters
        found: dict[str, Any] = {
            "brokerId": self._broker_id,
            "version": VERSION,
            "brokerState": int(self.health.state),
            "brokerStateName": self.health.state.name,
            "recoveryState": {"remainingLogsToRecover": self._remaining_logs()},
            "reasonsNotReady": self.health.why_not_ready(),
            # Since the start. Buckets: upper bound in seconds (the last has none) and count.
            "loopLag": [[None if bound == math.inf else bound, count] for bound, count in meters.loop.lag.buckets()],
            "bytesIn": meters.topics.total(lambda meter: meter.bytes_in),
            "bytesOut": meters.topics.total(lambda meter: meter.bytes_out),
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

    async def _made(self) -> bytes:
        page = await self._slices.run(self._written())
        # In a thread: there may be megabytes. Compressed once for all scrapers, as slow ones hold the pages of many
        # seconds.
        return await asyncio.to_thread(gzip, (piece.encode() for piece in page.taken()))

    def _written(self) -> Work[Page]:
        page = Page(self._max_series)
        meters = self.meters
        families.state(page, int(self.health.state), self._remaining_logs(), VERSION)
        families.process(page, meters, self._began_s)
        yield None
        families.requests(page, meters)
        if self.logs is not None:
            families.disks(page, self.logs.directories)
        if self.cleaner is not None:
            families.cleaning(page, self.cleaner)
        yield None
        if self._broker is not None:
            context, acceptor, replication = self._broker
            families.registry(page, context)
            families.connections(page, acceptor, context.listeners)
            yield from client_families.software(page, acceptor.connections)
            client_families.logins(page, context.listeners, context.authentication.counts, acceptor.tls)
            client_families.encryption(page, acceptor.tls)
            client_families.denials(page, acceptor.authorizer)
            yield from self._quotas.write(page, context.quotas.limits, context.quotas.clients)
            families.served(page, context)
            families.groups(page, context.groups)
            yield from families.controller(page, context.cluster, self._broker_id)
            yield from families.partitions(page, context.replicas, replication)
            families.throttles(page, context.replicas, meters)
        yield from families.topics(page, meters)
        self._dropped += page.dropped
        text = "Series that a scrape left out because of metrics.max.series."
        page.one("kafkalite_metrics_dropped_series_total", "counter", text, self._dropped)
        return page
