"""The quotas of the broker's clients, enforced: what each client has used, and for how long it is throttled (KIP-219).

A client is a principal with a client id. Its :class:`ClientQuota` is found with one look-up in a dictionary; the first
request after a change of quotas looks in the table (``limits``). Requests of other brokers have no quota.

- ``producer_byte_rate`` is charged with the bytes of each Produce request.
- ``consumer_byte_rate`` is charged with the record bytes of each answer to a Fetch. An answer is not larger than what
  is left of the allowance, or one window's. While bytes are owed answers are empty, and their session goes on.
- ``request_percentage`` is charged with the time of the event loop that requests take; 100 is all of it. Not counted
  are the sending of answers, and what other threads do.

The answer contains the time for which the client is throttled; then its connection is not read for that long. Some
clients do not wait by themselves, and give up a request after 30 s without an answer. So one such pause takes at most
15 s, and for ``request_percentage`` one window, as in Kafka. What is owed beyond that counts at the next request.

Client ids are chosen by clients. So there are at most 10,000 allowances; beyond that those that were used longest ago
go, and what they owed with them.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import nlargest
from math import ceil
from typing import Final

from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.quotas.allowance import MOST_ALLOWANCES, Allowance, Windows, drop_oldest
from spark_kafkalite.broker.quotas.limits import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, QuotaLimits
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.wire.api_keys import ApiKey

MOST_MUTED_S: Final = 15.0
_PRINCIPAL_PREFIX: Final = "User:"
# A longer client id is remembered by its digest.
_MOST_KEY_CHARS: Final = 256


class ClientQuota:
    """What limits one client; an ``exchange.Quota``. An allowance is None where nothing limits that kind."""

    __slots__ = ("_consumer", "_now_s", "_producer", "_request", "_window_s", "counts_time")

    def __init__(
        self,
        now_s: Callable[[], float],
        window_s: float,
        producer: Allowance | None,
        consumer: Allowance | None,
        request: Allowance | None,
    ) -> None:
        self._now_s = now_s
        self._window_s = window_s
        self._producer = producer
        self._consumer = consumer
        self._request = request
        # Whether exchanges need to know for how long they were worked on.
        self.counts_time = request is not None

    def throttle_time_ms(self, exchange: Exchange, response_bytes: int) -> int:
        """Charge the client for an exchange; return for how long it is throttled (``exchange.Quota``)."""
        now_s = self._now_s()
        owed_s, owed_to = 0.0, self._request
        if self._request is not None:
            owed_s = min(self._request.charge(exchange.worked_s, now_s), self._window_s)
        of_bytes, of_bytes_s = None, 0.0
        if exchange.api_key == ApiKey.PRODUCE:
            if self._producer is not None:
                of_bytes, of_bytes_s = self._producer, self._producer.charge(exchange.request_bytes, now_s)
        elif exchange.api_key == ApiKey.FETCH and self._consumer is not None:
            of_bytes, of_bytes_s = self._consumer, self._consumer.owed_s(now_s)
            if not owed_s and not of_bytes_s:
                self._consumer.charge(response_bytes, now_s)
        if of_bytes_s > owed_s:
            owed_s, owed_to = of_bytes_s, of_bytes
        if owed_s <= 0:
            return 0
        throttled_s = min(owed_s, MOST_MUTED_S)
        if owed_to is not None:
            owed_to.throttle(throttled_s)
        return ceil(throttled_s * 1000)

    def most_fetch_bytes(self, asked: int) -> int:
        """Return how many record bytes a Fetch that asks for so many may answer with."""
        if self._consumer is None:
            return asked
        return min(asked, int(self._consumer.room(self._now_s())) + 1)


class ClientQuotas:
    """See the module's text; a ``dispatch.QuotaSource``."""

    def __init__(self, now_s: Callable[[], float], windows: Windows, limits: QuotaLimits) -> None:
        """``now_s`` is a monotonic clock; ``limits`` are the quotas that there are, and may change."""
        self.are_set = limits.clients_have_some
        self._now_s = now_s
        self._windows = windows
        self._limits = limits
        self._clients: dict[tuple[str, str], ClientQuota | None] = {}
        self._allowances: dict[tuple[str, str, str], Allowance] = {}

    def __len__(self) -> int:
        """How many allowances there are."""
        return len(self._allowances)

    def most_used(self, number: int) -> list[tuple[tuple[str, str, str], Allowance]]:
        """Return the allowances that were used last, up to a number: each with its kind, its user and its client id,
        of which those that share it have none."""
        if len(self._allowances) <= number:
            return list(self._allowances.items())
        return nlargest(number, self._allowances.items(), key=lambda item: item[1].used_s)

    def limits_changed(self) -> None:
        """Obey the limits as they are now."""
        self.are_set = self._limits.clients_have_some
        self._clients.clear()

    def of(self, session: Session, client_id: str | None) -> ClientQuota | None:
        """Return what limits a client, None if nothing does."""
        if session.broker_id is not None:
            return None
        name = client_id or ""
        try:
            return self._clients[session.principal, name]
        except KeyError:
            return self._find(session.principal, name)

    def _find(self, principal: str, client_id: str) -> ClientQuota | None:
        user, short_id = principal.removeprefix(_PRINCIPAL_PREFIX), _short(client_id)
        key = principal, short_id
        if key in self._clients:
            return self._clients[key]
        if len(self._clients) >= MOST_ALLOWANCES:
            self._clients.clear()
        producer, consumer, request = (
            self._allowance(kind, user, client_id, per_unit)
            for kind, per_unit in ((PRODUCER_BYTE_RATE, 1.0), (CONSUMER_BYTE_RATE, 1.0), (REQUEST_PERCENTAGE, 0.01))
        )
        quota = None
        if producer is not None or consumer is not None or request is not None:
            quota = ClientQuota(self._now_s, self._windows.size_s, producer, consumer, request)
        self._clients[key] = quota
        return quota

    def _allowance(self, kind: str, user: str, client_id: str, per_unit: float) -> Allowance | None:
        found = self._limits.of_client(kind, user, client_id)
        if found is None:
            return None
        now_s, bound = self._now_s(), found.bound * per_unit
        key = kind, found.user, _short(found.client_id)
        allowance = self._allowances.get(key)
        if allowance is not None:
            allowance.obey(bound, now_s)
            return allowance
        if len(self._allowances) >= MOST_ALLOWANCES:
            drop_oldest(self._allowances)
            # What is dropped is not to be used on by those that have it.
            self._clients.clear()
        allowance = self._allowances[key] = Allowance(bound, self._windows, now_s)
        return allowance


def _short(client_id: str) -> str:
    if len(client_id) <= _MOST_KEY_CHARS:
        return client_id
    return blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
