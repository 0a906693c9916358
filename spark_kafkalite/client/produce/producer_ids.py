"""Asks the cluster for an idempotent producer's id, in a short-lived thread, one request at a time.

The producer's thread goes on meanwhile: an expired record must not wait for a broker that does not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Backoff, Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest
from spark_kafkalite.wire.rights import refusal

# Without a transactional id any timeout is legal and none is used; Kafka's own producer sends this one.
_NO_TIMEOUT_MS: Final = 2**31 - 1

Result = tuple[int, int] | KafkaliteError
"""Producer id and epoch, or why there is none."""


class ProducerIds:
    """Owned by the producer's thread; ``deliver`` is called from another one."""

    def __init__(self, cluster: ClusterClient, clock: Clock, deliver: Callable[[Result], None]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._deliver = deliver
        self._asking = False
        self._retry_at_s = 0.0
        self._backoff = Backoff(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)

    def ask(self, now_s: float) -> float | None:
        """Ask, unless that is under way; returns when to call again if it is too early now."""
        if self._asking:
            return None
        if now_s < self._retry_at_s:
            return self._retry_at_s
        self._asking = True
        threading.Thread(target=self._ask, name="kafkalite-producer-id", daemon=True).start()
        return None

    def _ask(self) -> None:
        try:
            answer = self._cluster.request_any(
                ApiKey.INIT_PRODUCER_ID,
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TIMEOUT_MS),
                Deadline.after_ms(self._cluster.config.request_timeout_ms, self._clock),
            )
            if answer.error_code:
                raise refusal(ApiKey.INIT_PRODUCER_ID, answer.error_code, "the broker gives no producer id")
            result: Result = (answer.producer_id, answer.producer_epoch)
            self._backoff.reset()
        except KafkaliteError as error:
            result = error
            self._retry_at_s = self._clock.monotonic_s() + self._backoff.next_s()
        self._asking = False
        self._deliver(result)
