"""The producer thread's connections: one to each broker that leads a partition, opened and renewed in other threads.

A link has a pipeline that the thread's selector watches, or is connecting in a short-lived thread, or waits until it
may try again. A session that is to be renewed (KIP-368) takes the same way. Once nothing is in flight, the pipeline
passes its connection to such a thread. That thread authenticates again and returns the connection, or a new one.
Nothing is sent meanwhile, so that order is kept.

Only the thread that has the sender's turn uses it.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Iterable

from spark_kafkalite.client.client_config import ClientConfig
from spark_kafkalite.client.network.broker_link import BrokerLink
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.pipeline import Pipeline
from spark_kafkalite.client.network.retry import Backoff, Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import BrokerUnreachable, KafkaliteError

_LOG = logging.getLogger("spark_kafkalite.client")

Deliver = Callable[[int, BrokerConnection | KafkaliteError], None]
"""Called in another thread with a node and its connection, or why there is none; :meth:`ProducerLinks.connected` is to
follow in the sender's turn.
"""


class ProducerLinks:
    """All links of one producer."""

    def __init__(
        self,
        config: ClientConfig,
        cluster: ClusterClient,
        selector: selectors.BaseSelector,
        clock: Clock,
        deliver: Deliver,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._selector = selector
        self._clock = clock
        self._deliver = deliver
        self._links: dict[int, BrokerLink] = {}

    @property
    def has_unwritten(self) -> bool:
        """Whether bytes are still to be handed to a socket."""
        return any(pipeline.wants_write for _, pipeline in self.pipelines())

    def pipelines(self) -> Iterable[tuple[int, Pipeline]]:
        """Return the nodes that are connected, and their pipelines."""
        return [(node, link.pipeline) for node, link in self._links.items() if link.pipeline is not None]

    def pipeline(self, node: int) -> Pipeline | None:
        """Return a node's pipeline, None while it is not connected."""
        link = self._links.get(node)
        return None if link is None else link.pipeline

    def connect(self, node: int, now_s: float) -> float | None:
        """Have a connection opened unless that is under way; returns when to call again if it is too early now."""
        link = self._links.get(node)
        if link is None:
            config = self._config
            link = self._links[node] = BrokerLink(Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms))
        if link.connecting:
            return None
        if link.retry_at_s > now_s:
            return link.retry_at_s
        link.connect(lambda: self._open(node), lambda opened: self._deliver(node, opened))
        return None

    def _open(self, node: int) -> BrokerConnection:
        return self._cluster.connect(node, self._deadline())

    def renew(self, node: int) -> None:
        """Have a node's connection authenticate again, with nothing in flight and nothing unwritten."""
        link = self._links[node]
        assert link.pipeline is not None
        self._selector.unregister(link.pipeline)
        connection = link.pipeline.detach()
        link.pipeline = None

        def renewed() -> BrokerConnection:
            try:
                connection.renew(self._deadline())
            except BrokerUnreachable as error:
                # A new connection finds out whether the credentials still do.
                _LOG.info("producer: %s; another connection is opened", error)
                return self._open(node)
            return connection

        link.connect(renewed, lambda opened: self._deliver(node, opened))

    def connected(self, node: int, opened: BrokerConnection | KafkaliteError) -> KafkaliteError | None:
        """Take the outcome of :meth:`connect` or :meth:`renew`; returns why there is no pipeline now."""
        link = self._links[node]
        link.connecting = False
        if isinstance(opened, BrokerConnection):
            try:
                link.pipeline = Pipeline(opened, self._clock.monotonic_s())
            except KafkaliteError as error:
                opened.close()
                opened = error
            else:
                link.backoff.reset()
                link.reported = ""
                self._selector.register(link.pipeline, selectors.EVENT_READ, node)
                return None
        if link.reported != str(opened):
            link.reported = str(opened)
            _LOG.warning("producer: %s; trying on", opened)
        self._put_off(link)
        return opened

    def watch(self, node: int, pipeline: Pipeline) -> None:
        """Have the selector report what the pipeline now waits for."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if pipeline.wants_write else 0)
        if self._selector.get_key(pipeline).events != events:
            self._selector.modify(pipeline, events, node)

    def drop(self, node: int) -> None:
        """Close a node's connection, which is not needed at present."""
        link = self._links[node]
        assert link.pipeline is not None
        self._selector.unregister(link.pipeline)
        link.pipeline.close()
        link.pipeline = None

    def lose(self, node: int) -> None:
        """Close a node's broken connection; another one is opened after a pause."""
        self.drop(node)
        self._put_off(self._links[node])

    def _put_off(self, link: BrokerLink) -> None:
        link.retry_at_s = self._clock.monotonic_s() + link.backoff.next_s()

    def close(self) -> None:
        """Close all connections."""
        for node, _ in self.pipelines():
            self.drop(node)

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._config.request_timeout_ms, self._clock)
