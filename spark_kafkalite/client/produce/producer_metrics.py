"""What a producer counts: requests, batches, records, and what became of them. Names are those of Kafka's producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spark_kafkalite.client.metrics import ClientMetrics, Observed, counts, summary, together, totals
from spark_kafkalite.client.produce.delivery import ProducerBatch


class _ProducedTopic:
    """Of one topic; sizes are those of batches."""

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
        self._queued_ms = Observed(clock_s)
        self._splits = Observed(clock_s)
        self._throttled_ms = Observed(clock_s)
        # Figures of the whole producer are theirs together.
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
        """Count a request that is handed to a connection."""
        for batch in batches:
            topic = self._topic(batch.topic)
            topic.records.observe(batch.record_count, now_s)
            topic.bytes.observe(batch.size_bytes, now_s)
            self._queued_ms.observe(1000 * (now_s - batch.created_s), now_s)
        self._node(node).sent.observe(request_bytes, now_s)

    def answered(self, node: int, seconds: float, answer_bytes: int, throttle_ms: int, now_s: float) -> None:
        """Count an answer. ``throttle_ms``: the throttle time in it, 0 where the client keeps to its quotas."""
        self._throttled_ms.observe(throttle_ms, now_s)
        of_node = self._node(node)
        of_node.latency_ms.observe(1000 * seconds, now_s)
        of_node.received.observe(answer_bytes, now_s)

    def retried(self, batch: ProducerBatch, now_s: float) -> None:
        """Count a batch that is sent again."""
        self._topic(batch.topic).retries.observe(batch.record_count, now_s)

    def failed(self, batch: ProducerBatch) -> None:
        """Count a batch that is given up."""
        self._topic(batch.topic).errors.observe(batch.record_count, self._clock_s())

    def split(self) -> None:
        """Count a batch that was too large and is sent in parts."""
        self._splits.observe(1, self._clock_s())

    def read(self, more: dict[str, float], nodes: Sequence[int]) -> ClientMetrics:
        """Return all, with ``more`` of the producer as a whole. ``nodes``: the brokers of the cluster."""
        topics, asked = list(self._topics.items()), list(self._nodes.items())
        records = together(topic.records.window() for _, topic in topics)
        whole = {
            **totals("record-send", records),
            **totals("record-error", together(topic.errors.window() for _, topic in topics)),
            **totals("record-retry", together(topic.retries.window() for _, topic in topics)),
            **summary("batch-size", together(topic.bytes.window() for _, topic in topics)),
            **summary("record-queue-time", self._queued_ms.window()),
            **summary("produce-throttle-time", self._throttled_ms.window()),
            **counts("batch-split", self._splits.window()),
            **_of_requests(node for _, node in asked),
            **more,
        }
        if requests := together(node.sent.window() for _, node in asked).lately:
            whole["records-per-request-avg"] = records.lately_sum / requests
        found: ClientMetrics = {"producer-metrics": whole}
        for name, topic in topics:
            found[f"producer-topic-metrics.{name}"] = {
                **totals("record-send", topic.records.window()),
                **totals("byte", topic.bytes.window()),
                **totals("record-error", topic.errors.window()),
                **totals("record-retry", topic.retries.window()),
            }
        for number, node in asked:
            if number in nodes:
                found[f"producer-node-metrics.node-{number}"] = _of_requests([node])
        return found


def _of_requests(nodes: Iterable[_AskedNode]) -> dict[str, float]:
    """Return the figures of the requests to some brokers."""
    asked = list(nodes)
    sent = together(node.sent.window() for node in asked)
    received = together(node.received.window() for node in asked)
    return {
        **summary("request-latency", together(node.latency_ms.window() for node in asked)),
        **counts("request", sent),
        **counts("response", received),
        **totals("outgoing-byte", sent),
        **totals("incoming-byte", received),
    }
