"""``request.log.slow.ms``: a line for each request that took long, with the phases of Kafka's request log.

A line names the API, the client and the times. No part of the request's body is in it, so it shows neither records nor
passwords. The client chooses its id and the names of its software: they are cut. A Fetch that waits for records, and a
JoinGroup or SyncGroup that waits for other members, are not slow: their waiting does not count.

Source: the field names are those of kafka.network.RequestConvertToJson. ``responseQueueTimeMs`` is left out: an answer
is sent by the thread that has made it, and ``sendTimeMs`` has the time to its last byte.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from spark_kafkalite.broker.requests.exchange import Exchange, Oversight, Times
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.wire.api_keys import ApiKey

logger: Final = logging.getLogger("spark_kafkalite.request")

_WAIT_FOR_CLIENTS: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
_MOST_CHARS: Final = 200


class RequestWatch(Protocol):
    """Chooses what sees a request."""

    def next(self, api_key: int) -> Oversight | None:
        """Count a request of a served API; return what sees its exchange, None if nothing does."""


class SlowRequests(Oversight):
    """Sees every exchange and logs the slow ones; has ``meter`` see those that it samples."""

    def __init__(self, slow_ms: int, meter: RequestWatch | None = None) -> None:
        self._slow_s = slow_ms / 1000
        self._meter = meter
        self._quiet = QuietLog(logger)

    def next(self, api_key: int) -> Oversight:
        """Return what sees a request."""
        if self._meter is None or (sampled := self._meter.next(api_key)) is None:
            return self
        return _Both(self, sampled)

    def ended(self, exchange: Exchange, times: Times) -> None:
        """Log the exchange if it was slow; one whose client has gone away has no times."""
        if not times.sent_s:
            return
        counted_s = times.sent_s - times.arrived_s
        if exchange.api_key in _WAIT_FOR_CLIENTS:
            counted_s -= times.waited_s
        if counted_s >= self._slow_s:
            self._log(exchange, times)

    def _log(self, exchange: Exchange, times: Times) -> None:
        session = exchange.session
        api = ApiKey(exchange.api_key).api_name
        client = (exchange.client_id or "")[:_MOST_CHARS]
        started_s = times.started_s or times.arrived_s
        phases = {
            "totalTimeMs": times.sent_s - times.arrived_s,
            "requestQueueTimeMs": started_s - times.arrived_s,
            "localTimeMs": times.answered_s - started_s - times.waited_s,
            "remoteTimeMs": times.waited_s,
            "sendTimeMs": times.sent_s - times.answered_s,
        }
        shown = {name: round(1000 * seconds, 3) for name, seconds in phases.items()}
        self._quiet.log(
            logging.INFO,
            api,
            "slow request: %s v%d of client %r (%s) at %s took %s ms: "
            "%s in the queue, %s at work, %s waiting, %s to send",
            api,
            exchange.api_version,
            client,
            session.principal,
            session.peer,
            *shown.values(),
            event={
                "requestHeader": {
                    "requestApiKey": exchange.api_key,
                    "requestApiKeyName": api,
                    "requestApiVersion": exchange.api_version,
                    "correlationId": exchange.correlation_id,
                    "clientId": client,
                },
                "requestSizeBytes": exchange.request_bytes,
                "connection": session.peer,
                **shown,
                "throttleTimeMs": max(0, exchange.throttle_ms),
                "securityProtocol": session.listener.protocol.value,
                "principal": session.principal,
                "listener": session.listener.name,
                "clientInformation": {
                    "softwareName": session.client_software_name,
                    "softwareVersion": session.client_software_version,
                },
            },
        )


class _Both(Oversight):
    """Has two see the end of an exchange."""

    def __init__(self, first: Oversight, second: Oversight) -> None:
        self._first = first
        self._second = second

    def ended(self, exchange: Exchange, times: Times) -> None:
        self._first.ended(exchange, times)
        self._second.ended(exchange, times)


def watch_for(slow_ms: int, meter: RequestWatch | None) -> RequestWatch | None:
    """Return what sees requests, for a value of ``request.log.slow.ms`` and a broker's meter; None if nothing does."""
    return meter if slow_ms < 0 else SlowRequests(slow_ms, meter)
