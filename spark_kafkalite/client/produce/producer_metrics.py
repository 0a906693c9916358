"""What a producer counts: requests, batches, records, and what became of them. Names are those of Kafka's producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spark_kafkalite.client.metrics import ClientMetrics, Observed, counts, summary, totals
from spark_kafkalite.client.produce.delivery import ProducerBatch


class _ProducedTopic:
    """Of one topic."""

    __slots__ = ("bytes", "errors", "records", "retries")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.records, self.bytes, self.errors, self.retries = (Observed(clock_s) for _ in range(4))


class _AskedNode:
    """Of one broker."""

    __slots__ = ("latency_ms", "received", "sent")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.latency_ms, self.sent, self.received = (Observed(clock_s) for _ in range(3))


class ProducerMetrics:
    """Counts of one producer. Changed by the thread that holds the sender's turn; read by any."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._records_per_request = Observed(clock_s)
        self._batch_bytes = Observed(clock_s)
        self._queued_ms = Observed(clock_s)
        self._latency_ms = Observed(clock_s)
        self._sent = Observed(clock_s)
        self._received = Observed(clock_s)
        self._records = Observed(clock_s)
        self._errors = Observed(clock_s)
        self._retries = Observed(clock_s)
        self._splits = Observed(clock_s)
        self._topics: dict[str, _ProducedTopic] = {}
        self._nodes: dict[int, _AskedNode] = {}

    def _topic(self, name: str) -> _ProducedTopic:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = _ProducedTopic(self._clock_s)
        return found

    def _node(self, node: int) -> _AskedNode:
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = _AskedNode(self._clock_s)
        return found

    def sent(self, node: int, batches: Iterable[ProducerBatch], request_bytes: int, now_s: float) -> None:
        """Count a request that was handed to a connection."""
        records = 0
        for batch in batches:
            count, size = batch.record_count, batch.size_bytes
            records += count
            self._batch_bytes.observe(size, now_s)
            self._queued_ms.observe(1000 * max(0.0, now_s - batch.created_s), now_s)
            topic = self._topic(batch.topic)
            topic.records.observe(count, now_s)
            topic.bytes.observe(size, now_s)
        self._records.observe(records, now_s)
        self._records_per_request.observe(records, now_s)
        self._sent.observe(request_bytes, now_s)
        self._node(node).sent.observe(request_bytes, now_s)

    def answered(self, node: int, seconds: float, answer_bytes: int, now_s: float) -> None:
        """Count an answer."""
        of_node = self._node(node)
        for latency in (self._latency_ms, of_node.latency_ms):
            latency.observe(1000 * seconds, now_s)
        for received in (self._received, of_node.received):
            received.observe(answer_bytes, now_s)

    def retried(self, batch: ProducerBatch, now_s: float) -> None:
        """Count a batch that is sent again."""
        self._retries.observe(batch.record_count, now_s)
        self._topic(batch.topic).retries.observe(batch.record_count, now_s)

    def failed(self, batch: ProducerBatch) -> None:
        """Count a batch that is given up."""
        now_s = self._clock_s()
        self._errors.observe(batch.record_count, now_s)
        self._topic(batch.topic).errors.observe(batch.record_count, now_s)

    def split(self) -> None:
        """Count a batch that was too large and is sent in parts."""
        self._splits.observe(1, self._clock_s())

    def read(self, more: dict[str, float], nodes: Sequence[int]) -> ClientMetrics:
        """Return all, with ``more`` of the producer as a whole. ``nodes``: the brokers of the cluster."""
        found: ClientMetrics = {
            "producer-metrics": {
                **totals("record-send", self._records),
                **totals("record-error", self._errors),
                **totals("record-retry", self._retries),
                **summary("batch-size", self._batch_bytes),
                **summary("record-queue-time", self._queued_ms),
                **summary("request-latency", self._latency_ms),
                **summary("records-per-request", self._records_per_request, ("avg",)),
                **counts("request", self._sent),
                **counts("response", self._received),
                **totals("outgoing-byte", self._sent),
                **totals("incoming-byte", self._received),
                **counts("batch-split", self._splits),
                **more,
            }
        }
        for name, topic in list(self._topics.items()):
            found[f"producer-topic-metrics.{name}"] = {
                **totals("record-send", topic.records),
                **totals("byte", topic.bytes),
                **totals("record-error", topic.errors),
                **totals("record-retry", topic.retries),
            }
        for node, of_node in list(self._nodes.items()):
            if node in nodes:
                found[f"producer-node-metrics.node-{node}"] = {
                    **summary("request-latency", of_node.latency_ms),
                    **counts("request", of_node.sent),
                    **counts("response", of_node.received),
                    **totals("outgoing-byte", of_node.sent),
                    **totals("incoming-byte", of_node.received),
                }
        return found
