"""The topics that a member's subscription means at present, and whether a change of them needs a rebalance.

Owns the selection, the topics it stood for when the member joined, and on the group's leader the partition counts that
were dealt out. A pattern is matched against all topics of the cluster, which are then all watched; the leader watches
the topics of every member. Metadata is refreshed in the background (``metadata.max.age.ms``); :meth:`change` compares.

:meth:`counts_for` is called in the member's thread, everything else in the one that polls.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from spark_kafkalite.client.consume.subscription import TopicSelection, partition_counts
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import ClusterSnapshot, topic_error
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import TopicAuthorizationFailed, UnknownTopicOrPartition
from spark_kafkalite.wire.error_codes import is_retriable

_LOG = logging.getLogger("spark_kafkalite.client")

# A topic that is being made has its leaders soon; one that is not known may be about to be made by our asking.
_PAUSE_S: Final = 0.1
_LEADER_ATTEMPTS: Final = 30
_UNKNOWN_ATTEMPTS: Final = 5


class GroupTopics:
    """The topics of one member."""

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._selection = TopicSelection()
        self._auto_create = False
        # What was asked for when the member joined, or when it began to.
        self._joining: frozenset[str] = frozenset()
        self._has_joined = False
        self._dealt_out: Mapping[str, int] = {}
        self._group_topics: frozenset[str] = frozenset()
        self._is_leader = False
        self._seen_version = -1

    def select(self, selection: TopicSelection, *, auto_create: bool) -> None:
        """Want these topics from now on."""
        self._cluster.unwatch_topics(self._selection.topics - selection.topics)
        self._selection = selection
        self._auto_create = auto_create and selection.pattern is None
        self._seen_version = -1
        self._cluster.watch_all_topics(selection.pattern is not None)
        if selection.pattern is None:
            self._cluster.watch_topics(selection.topics, auto_create=self._auto_create)

    def stop(self) -> None:
        """Want nothing any more."""
        self._cluster.watch_all_topics(False)
        self._cluster.unwatch_topics(self._selection.topics | self._joining | self._group_topics)

    @property
    def is_known(self) -> bool:
        """Whether it is known which topics there are, as a pattern needs."""
        return self._selection.pattern is None or self._cluster.knows_all_topics

    def is_behind(self, snapshot: ClusterSnapshot) -> bool:
        """Whether the snapshot is newer than the one that :meth:`change` has read."""
        return snapshot.version != self._seen_version

    def for_join(self) -> frozenset[str]:
        """Return the topics to join with."""
        self._joining = self._selection.names(self._cluster.snapshot)
        # What was dealt out is about to be dealt out anew: until then there is nothing to compare with.
        self._is_leader = False
        return self._joining

    def joined(self, *, is_leader: bool) -> None:
        """Note that the generation joined with these topics is in force."""
        self._has_joined = True
        self._is_leader = is_leader
        self._seen_version = -1

    def wants(self, topic: str) -> bool:
        """Whether partitions of the topic are what was joined for."""
        return topic in self._joining

    def change(self, snapshot: ClusterSnapshot) -> str | None:
        """Return why the member should join again, None when nothing has changed for it."""
        if not self.is_behind(snapshot):
            return None
        self._seen_version = snapshot.version
        if not self._has_joined or not self.is_known:
            return None
        wanted = self._selection.names(snapshot)
        if wanted != self._joining:
            more, fewer = sorted(wanted - self._joining), sorted(self._joining - wanted)
            return f"the subscription has changed (new: {more[:5]}, gone: {fewer[:5]})"
        if self._is_leader:
            counts = partition_counts(snapshot, self._group_topics)
            changed = sorted(set(counts.items()) ^ set(self._dealt_out.items()))
            if changed:
                return f"topic {changed[0][0]!r} has other partitions than were assigned"
        return None

    def counts_for(self, topics: set[str]) -> dict[str, int]:
        """Ask the cluster for the partition counts of the group's topics.

        Raises BrokerUnreachable, TopicAuthorizationFailed (29).
        """
        self._cluster.watch_topics(topics)
        deadline = Deadline.after_ms(self._cluster.config.request_timeout_ms, self._clock)
        for attempt in range(_LEADER_ATTEMPTS):
            snapshot = self._cluster.refresh(topics, deadline, allow_auto_create=self._auto_create)
            codes = {topic.error_code for name in topics if (topic := snapshot.topics.get(name)) is not None}
            unknown = codes == {0, UnknownTopicOrPartition.code} or codes == {UnknownTopicOrPartition.code}
            if unknown and not (self._auto_create and attempt < _UNKNOWN_ATTEMPTS):
                break
            if not any(is_retriable(code) for code in codes):
                break
            self._cluster.pause(_PAUSE_S)
        if TopicAuthorizationFailed.code in codes:
            self._check_rights(snapshot, topics)
        counts = partition_counts(snapshot, topics)
        if missing := sorted(topics - counts.keys()):
            _LOG.warning("the group has subscribed to topics that do not exist: %s", ", ".join(missing))
        self._group_topics, self._dealt_out = frozenset(topics), counts
        return counts

    def _check_rights(self, snapshot: ClusterSnapshot, topics: set[str]) -> None:
        """Raise TopicAuthorizationFailed for a topic that this member wants; what others may not read is theirs."""
        for name in sorted(topics & self._joining):
            topic = snapshot.topics.get(name)
            if topic is not None and topic.error_code == TopicAuthorizationFailed.code:
                raise topic_error(name, topic.error_code)
