"""How the admin client talks to the cluster: one request to the right broker, retried for transient errors.

The base of :class:`spark_kafkalite.client.admin.admin.Admin`, whose calls lie in ``cluster.py`` (topics and brokers as
they are), ``admin.py`` (changes of topics), ``configs.py`` (settings) and others. It owns the view of the cluster and
closes it. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Self

from spark_kafkalite.client.client_config import admin_config
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Backoff, Deadline, is_retriable, needs_refresh
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    AdvertisedUnreachable,
    BrokerUnreachable,
    KafkaError,
    KafkaliteError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_kafkalite.wire.rights import refusal

# Retriable for a producer that has just seen the topic; here it means that there is none, and a timeout that the work
# goes on inside the broker, so that a second try would only find it done.
_FINAL_FOR_TOPICS: Final = frozenset({UnknownTopicOrPartition.code, RequestTimedOut.code})


class AdminRequests:
    """A connection to a cluster for administration. Use it as a context manager, or call :meth:`close`."""

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, clock: Clock = SYSTEM_CLOCK, **keywords: object
    ) -> None:
        """``settings`` have Kafka's names; ``keywords`` are the same in snake case (``bootstrap_servers=...``)."""
        self.config = admin_config(settings, keywords)
        self._clock = clock
        self._cluster = ClusterClient(self.config, clock)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cluster!r})"

    @property
    def cluster(self) -> ClusterClient:
        """The underlying view of the cluster, for other parts of this package."""
        return self._cluster

    def _for_each(
        self,
        api_key: int,
        names: list[str],
        request: Callable[[list[str]], Any],
        results_of: Callable[[Any], Iterable[Any]],
        deadline: Deadline,
        doing: str,
        ignored: tuple[int, ...] = (),
    ) -> None:
        """Have the controller do something with each name; names whose error passes are tried again.

        Raises the first error; the text names all of them.
        """
        left = list(names)
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        failed: dict[str, KafkaError] = {}
        while left:
            passing: dict[str, KafkaError] = {}
            answer = self._retried(partial(self._ask_controller, api_key, request, left, deadline), deadline)
            for result in results_of(answer):
                if not result.error_code or result.error_code in ignored:
                    continue
                error = refusal(
                    api_key, result.error_code, f"cannot {doing} {result.name}: {result.error_message or 'refused'}"
                )
                if error.retriable and result.error_code not in _FINAL_FOR_TOPICS:
                    passing[result.name] = error
                else:
                    failed[result.name] = error
            pause_s = backoff.next_s()
            if passing and deadline.left_s() <= pause_s:
                failed.update(passing)
                break
            left = list(passing)
            if left:
                self._cluster.pause(pause_s)
                self._cluster.refresh([], deadline)
        if failed:
            first, *others = failed.values()
            if others:
                raise type(first)("; ".join(str(error) for error in (first, *others)))
            raise first

    def _ask_controller(
        self, api_key: int, request: Callable[[list[str]], Any], names: list[str], deadline: Deadline
    ) -> Any:
        return self._cluster.request_controller(api_key, request(names), deadline)

    def _retried(self, ask: Callable[[], Any], deadline: Deadline) -> Any:
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        while True:
            try:
                return ask()
            except KafkaliteError as error:
                pause_s = backoff.next_s()
                final = isinstance(error, UnknownTopicOrPartition) or not is_retriable(error)
                if final or deadline.left_s() <= pause_s:
                    raise
                self._cluster.pause(pause_s)
                if needs_refresh(error):
                    self._refresh_after(error, deadline)

    def _refresh_after(self, error: KafkaliteError, deadline: Deadline) -> None:
        try:
            self._cluster.refresh([], deadline)
        except BrokerUnreachable:
            # The deadline has cut that round short. The first error names the setting that is wrong.
            if isinstance(error, AdvertisedUnreachable):
                raise error from None
            raise

    def _deadline(self, timeout_ms: int | None) -> Deadline:
        return Deadline.after_ms(self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms, self._clock)

    def _broker_timeout_ms(self, deadline: Deadline) -> int:
        """How long the broker may take: its answer must come before the request times out here."""
        return max(1, int(min(deadline.left_s() * 1000, self.config.request_timeout_ms) * 0.9))

    def close(self) -> None:
        """Close all connections. May be called more than once, and from any thread."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
