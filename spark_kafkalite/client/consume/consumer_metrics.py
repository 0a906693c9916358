"""What a consumer counts: fetches, what they brought, what was returned, and commits. Names are those of Kafka's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.metrics import ClientMetrics, Observed, Window, counts, summary, totals
from spark_kafkalite.model import TopicPartition


def lags_and_leads(
    ends: Mapping[TopicPartition, int], states: Mapping[TopicPartition, TopicPartitionState]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the records from each position to the end, and from the start to it, as the last fetches saw them."""
    lags, leads = {}, {}
    for each, end in ends.items():
        state = states.get(each)
        if state is not None and state.position is not None:
            lags[each] = max(0, end - state.position)
            if state.log_start_offset >= 0:
                leads[each] = max(0, state.position - state.log_start_offset)
    return lags, leads


def _rebalances(window: Window) -> dict[str, float]:
    """Return them as Kafka's ConsumerCoordinatorMetrics does: their rate is one of an hour."""
    return {"rebalance-total": float(window.times), "rebalance-rate-per-hour": 3600 * window.lately / window.seconds}


class _ConsumedTopic:
    """Of one topic."""

    __slots__ = ("bytes", "records")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.bytes, self.records = Observed(clock_s), Observed(clock_s)


class ConsumerMetrics:
    """Counts of one consumer. Changed under the lock of its ``ReadAhead`` or by the thread that polls; read by any."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._latency_ms = Observed(clock_s)
        self._throttled_ms = Observed(clock_s)
        self._fetched_bytes = Observed(clock_s)
        self._records = Observed(clock_s)
        self._between_polls_ms = Observed(clock_s)
        self._commit_ms = Observed(clock_s)
        self._rebalances = Observed(clock_s)
        self._polled_s: float | None = None
        self._topics: dict[str, _ConsumedTopic] = {}

    def _topic(self, name: str) -> _ConsumedTopic:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = _ConsumedTopic(self._clock_s)
        return found

    def fetched(self, seconds: float, sizes: Iterable[tuple[str, int]], throttle_ms: int) -> None:
        """Count an answer to a fetch: topics and bytes of what is kept of it, and the throttle time that it names."""
        now_s = self._clock_s()
        self._throttled_ms.observe(throttle_ms, now_s)
        self._latency_ms.observe(1000 * seconds, now_s)
        total = 0
        for topic, size in sizes:
            total += size
            self._topic(topic).bytes.observe(size, now_s)
        self._fetched_bytes.observe(total, now_s)

    def decoded(self, topic: str, records: int) -> None:
        """Count records that polls return."""
        now_s = self._clock_s()
        self._records.observe(records, now_s)
        self._topic(topic).records.observe(records, now_s)

    def polled(self) -> None:
        """Count the beginning of a poll."""
        now_s = self._clock_s()
        if self._polled_s is not None:
            self._between_polls_ms.observe(1000 * (now_s - self._polled_s), now_s)
        self._polled_s = now_s

    def committed(self, seconds: float) -> None:
        """Count a commit that succeeded."""
        self._commit_ms.observe(1000 * seconds, self._clock_s())

    def rebalanced(self) -> None:
        """Count an assignment of the group."""
        self._rebalances.observe(1, self._clock_s())

    def read(
        self, lags: Mapping[TopicPartition, int], leads: Mapping[TopicPartition, int], assigned: int | None
    ) -> ClientMetrics:
        """Return all. ``lags`` and ``leads``: records from the position to the end, and from the start to it.

        ``assigned``: how many partitions a consumer with a group has, None for one without.
        """
        fetch = {
            **summary("fetch-latency", self._latency_ms.window()),
            **counts("fetch", self._latency_ms.window()),
            **summary("fetch-throttle-time", self._throttled_ms.window()),
            **summary("fetch-size", self._fetched_bytes.window()),
            **totals("bytes-consumed", self._fetched_bytes.window()),
            **totals("records-consumed", self._records.window()),
        }
        if fetches := self._latency_ms.window().lately:
            fetch["records-per-request-avg"] = self._records.window().lately_sum / fetches
        if lags:
            fetch["records-lag-max"] = float(max(lags.values()))
        if leads:
            fetch["records-lead-min"] = float(min(leads.values()))
        polls = summary("time-between-poll", self._between_polls_ms.window())
        if self._polled_s is not None:
            polls["last-poll-seconds-ago"] = self._clock_s() - self._polled_s
        found: ClientMetrics = {"consumer-fetch-manager-metrics": fetch, "consumer-metrics": polls}
        for name, topic in list(self._topics.items()):
            found[f"consumer-fetch-manager-metrics.{name}"] = {
                **totals("bytes-consumed", topic.bytes.window()),
                **totals("records-consumed", topic.records.window()),
            }
        for partition, lag in lags.items():
            of_partition = {"records-lag": float(lag)}
            if partition in leads:
                of_partition["records-lead"] = float(leads[partition])
            found[f"consumer-fetch-manager-metrics.{partition}"] = of_partition
        if assigned is not None:
            found["consumer-coordinator-metrics"] = {
                "assigned-partitions": float(assigned),
                **summary("commit-latency", self._commit_ms.window()),
                **counts("commit", self._commit_ms.window()),
                **_rebalances(self._rebalances.window()),
            }
        return found
