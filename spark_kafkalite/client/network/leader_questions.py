"""A question about many partitions, put to the leader of each, in rounds until every one has answered.

In a round each leader is asked once, for all of its partitions. Between rounds there is a pause, and metadata is
refreshed where an error shows that it is stale. The :class:`LeaderQuestion` decides what is asked, what an answer
means, and which error ends the question.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import PartitionInfo
from spark_kafkalite.client.network.retry import Backoff, Deadline, is_retriable, needs_refresh
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey

# The partitions that one leader is asked about, by topic.
Asked = Mapping[str, Sequence[PartitionInfo]]
Failures = dict[TopicPartition, KafkaliteError]


class LeaderQuestion(ABC):
    """What is asked of the leaders. ``left`` has a number (an offset, a time) for each partition without an answer."""

    api_key: ClassVar[ApiKey]

    def __init__(self, left: Mapping[TopicPartition, int]) -> None:
        self.left = dict(left)

    @abstractmethod
    def request(self, asked: Asked, deadline: Deadline) -> Any:
        """Return the message for one leader."""

    @abstractmethod
    def take(self, answer: Any) -> Failures:
        """Take what a leader answers out of ``left``; return the errors of the others.

        Raises KafkaliteError for an answer that is an error as a whole.
        """

    def judge(self, failures: Failures, rounds: int, *, may_go_on: bool) -> None:
        """Raise the error that ends the question, or take partitions that are given up out of ``left``.

        ``rounds`` have had errors so far; ``may_go_on`` is false when the deadline is too near for another one. By
        default the last error is raised then, and at once one that does not pass.
        """
        for error in failures.values():
            if not is_retriable(error):
                raise error
        if not may_go_on:
            *_, last = failures.values()
            raise last


def ask_leaders(cluster: ClusterClient, question: LeaderQuestion, deadline: Deadline) -> None:
    """Ask until nothing is left, following moves of leaders; raises what the question's ``judge`` raises."""
    backoff = Backoff(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)
    while question.left:
        failures = _round(cluster, question, deadline)
        if not failures:
            continue
        pause_s = backoff.next_s()
        question.judge(failures, backoff.attempts, may_go_on=deadline.left_s() > pause_s)
        if question.left:
            cluster.pause(pause_s)
            if any(needs_refresh(error) for error in failures.values()):
                cluster.refresh({each.topic for each in question.left}, deadline)


def _round(cluster: ClusterClient, question: LeaderQuestion, deadline: Deadline) -> Failures:
    """Ask each leader once; return the errors that were met."""
    failures: Failures = {}
    by_leader: dict[int, dict[str, list[PartitionInfo]]] = defaultdict(lambda: defaultdict(list))
    for topic_partition in question.left:
        try:
            info = cluster.leading(topic_partition)
        except KafkaliteError as error:
            failures[topic_partition] = error
        else:
            by_leader[info.leader][topic_partition.topic].append(info)
    for leader, asked in by_leader.items():
        # One that does not answer leaves time to ask the next.
        attempt = deadline.earlier_of(cluster.config.request_timeout_ms)
        try:
            answer = cluster.request_to(leader, question.api_key, question.request(asked, attempt), attempt)
            failures.update(question.take(answer))
        except KafkaliteError as error:
            of_leader = (TopicPartition(topic, info.partition) for topic, infos in asked.items() for info in infos)
            failures.update(dict.fromkeys((each for each in of_leader if each in question.left), error))
    return failures
