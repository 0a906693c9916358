"""What a session reads about topics: their list and, of each, its node, its settings and its partitions' states.

A topic is what its node was created as: one that is made again under its name is read afresh (rule R10). A node that
cannot be read costs what it says: a topic's, the topic; its settings', those; a partition's state, that partition. What
was known of it before stands.

Everything here runs from the queue of ``node_reads``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Final

from spark_kafkalite.model import topic_name_problem
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import TopicState
from spark_kafkalite.registry.cluster.node_reads import NodeReads
from spark_kafkalite.registry.cluster.watched_topic import WatchedTopic
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import Stat, Store
from spark_kafkalite.slices import Work

_LOG = logging.getLogger(__name__)

# What is done for so many partitions takes no more than a part of a millisecond.
_PARTITIONS_AT_ONCE: Final = 50


class TopicReads:
    """The topics as one session has read them."""

    def __init__(self, store: Store, reads: NodeReads, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when there is something to publish."""
        self._store = store
        self._reads = reads
        self._on_change = on_change
        self._topics: dict[str, WatchedTopic] = {}
        self._bad_names: set[str] = set()
        # Topics that exist, and nothing more is known: of each the mzxid of what cannot be read.
        self.unreadable: dict[str, int] = {}
        # Topics whose nodes name no id: they keep the one that their nodes have named before, in this session.
        self.without_id: set[str] = set()
        # Topics that have changed since they were last published, and how many changes that were.
        self._dirty: set[str] = set()
        self.changes = 0
        # What is published; replaced by each publication that changes anything.
        self.published: dict[str, TopicState] = {}

    def publish(self) -> Work[Collection[str]]:
        """Bring :attr:`published` up to what has been read, and return the names of the topics that differ."""
        names, self._dirty = self._dirty, set()
        self.changes = 0
        if names:
            published = self.published.copy()
            for name in sorted(names):
                topic = self._topics.get(name)
                state = None if topic is None else topic.publish()
                if state is None:
                    published.pop(name, None)
                else:
                    published[name] = state
                yield None
            self.published = published
        return names

    def read_all(self) -> Work[None]:
        """Read everything again."""
        self.read_list()
        for name in list(self._topics):
            self._read_topic(name)
            yield None

    def _changed_topic(self, name: str) -> None:
        self._dirty.add(name)
        self.changes += 1
        self._on_change()

    def read_list(self) -> None:
        """Read which topics there are, and those that are new."""
        watch = self._reads.watch(self.read_list)
        self._reads.read(lambda: self._store.children(znodes.TOPICS, watch), self._apply_topic_list)

    def _apply_topic_list(self, names: list[str] | None) -> Work[None]:
        # Names that were looked at before are not again: the list is read anew for every few topics that are made.
        listed = {name for name in names or () if name in self._topics or self._is_topic_name(name)}
        for name in [known for known in sorted({*self._topics, *self.unreadable}) if known not in listed]:
            self._forget_topic(name)
            yield None
        for name in sorted(listed - self._topics.keys()):
            self._read_topic(name)
            yield None

    def _is_topic_name(self, name: str) -> bool:
        problem = topic_name_problem(name)
        if problem is not None and name not in self._bad_names:
            self._bad_names.add(name)
            _LOG.error("ignoring the registry node %s: %s", znodes.topic_path(name), problem)
        return problem is None

    def _forget_topic(self, name: str) -> None:
        if self.unreadable.pop(name, None) is not None:
            self._on_change()
        topic = self._topics.pop(name, None)
        self.without_id.discard(name)
        if topic is not None:
            self._changed_topic(name)
            self._forget_watchers(name, topic)

    def _forget_watchers(self, name: str, topic: WatchedTopic) -> None:
        self._reads.forget_watch(self._read_topic, name)
        self._reads.forget_watch(self._read_config, name)
        for number in topic.assignment.partitions:
            self._reads.forget_watch(self._read_state, name, number, topic.generation)

    def _read_topic(self, name: str) -> None:
        path, watch = znodes.topic_path(name), self._reads.watch(self._read_topic, name)
        self._reads.read(lambda: self._store.get(path, watch), self._apply_topic, name)

    def _apply_topic(self, name: str, result: tuple[bytes, Stat] | None) -> Work[None]:
        if result is None:
            self._forget_topic(name)
            return
        data, stat = result
        topic = self._topics.get(name)
        if topic is not None and topic.assignment_zxid > stat.mzxid:
            return
        try:
            assignment = yield from znodes.TopicAssignment.decode_work(name, data)
        except MalformedNode as malformed:
            if topic is not None and topic.generation == stat.czxid:
                raise
            if self.unreadable.get(name) != stat.mzxid:
                self._forget_topic(name)
                _LOG.error(
                    "topic %s is not served, its logs are kept: %s; write what it should hold, or delete the topic",
                    name,
                    malformed,
                )
                self.unreadable[name] = stat.mzxid
                self._on_change()
            return
        if self.unreadable.pop(name, None) is not None:
            self._on_change()
        self.without_id.discard(name)
        if assignment.topic_id == znodes.NO_TOPIC_ID:
            self.without_id.add(name)
        known_id = znodes.NO_TOPIC_ID
        if topic is not None and topic.generation == stat.czxid:
            known_id = topic.assignment.topic_id
        if assignment.topic_id == znodes.NO_TOPIC_ID != known_id:
            # Tools for older versions of Kafka write the node so; it is the same topic.
            assignment = replace(assignment, topic_id=known_id)
        if topic is None or topic.generation != stat.czxid:
            if topic is not None:
                self._forget_watchers(name, topic)
            topic = self._topics[name] = WatchedTopic(stat.czxid, assignment, stat.mzxid)
        elif topic.assignment_zxid != stat.mzxid:
            topic.assignment, topic.assignment_zxid = assignment, stat.mzxid
        topic.changed_partitions.update(assignment.partitions)
        self._changed_topic(name)
        self._read_config(name)
        for index, number in enumerate(assignment.partitions):
            self._read_state(name, number, topic.generation)
            if index % _PARTITIONS_AT_ONCE == 0:
                yield None

    def _read_config(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is not None:
            present = topic.config_zxid >= 0
            self._read_watched(znodes.topic_config_path(name), self._read_config, (name,), self._apply_config, present)

    def _apply_config(self, name: str, result: tuple[bytes, Stat] | None) -> None:
        topic = self._topics.get(name)
        if topic is None:
            return
        zxid = -1 if result is None else result[1].mzxid
        if topic.config is not None and zxid == topic.config_zxid:
            return
        if result is None and topic.config is not None:
            self._reads.when_settled(partial(self._read_config, name))
        try:
            config = {} if result is None else znodes.decode_config(znodes.topic_config_path(name), result[0])
        except MalformedNode as malformed:
            if topic.config is not None:
                raise
            # Without settings the topic would not be served at all.
            _LOG.error("topic %s has the default settings: %s", name, malformed)
            config = {}
        topic.config, topic.config_zxid = config, zxid
        self._changed_topic(name)

    def _read_state(self, name: str, number: int, generation: int) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.generation != generation:
            return  # an event of a topic that has been deleted or made again
        arguments = (name, number, generation)
        present = number in topic.states
        self._read_watched(znodes.state_path(name, number), self._read_state, arguments, self._apply_state, present)

    def _read_watched(
        self,
        path: str,
        read_again: Callable[..., None],
        arguments: tuple[Any, ...],
        apply: Callable[..., None],
        present: bool,
    ) -> None:
        """Read a node that may not exist, leaving a watch either way.

        Only ``exists`` leaves a watch on a node to come; most are there, and one call does for them. One that was there
        and is not any more is read again later (``when_settled``), when it is known whether its topic is there.
        """
        watch = self._reads.watch(read_again, *arguments)

        def got(result: tuple[bytes, Stat] | None) -> None:
            if result is None and not present:
                self._reads.read(lambda: self._store.exists(path, watch), found)
            apply(*arguments, result)

        def found(stat: Stat | None) -> None:
            if stat is not None:
                # It came between the two reads.
                read_again(*arguments)

        self._reads.read(lambda: self._store.get(path, watch), got)

    def _apply_state(self, name: str, number: int, generation: int, result: tuple[bytes, Stat] | None) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.generation != generation:
            return
        if result is None:
            if topic.forget_state(number):
                self._changed_topic(name)
                # A get that finds nothing leaves no watch; the next read waits for the node to come back.
                self._reads.when_settled(partial(self._read_state, name, number, generation))
            return
        data, stat = result
        known = topic.states.get(number)
        if known is not None and known[1].mzxid >= stat.mzxid:
            return
        if stat.czxid < topic.generation:
            return
        state: znodes.LeaderAndIsr | None = None
        try:
            state = znodes.LeaderAndIsr.decode(name, number, data)
        except MalformedNode as malformed:
            if known is not None and known[0] is not None:
                raise
            _LOG.error(
                "partition %s-%d is offline: %s; write what it should hold, or delete the topic",
                name,
                number,
                malformed,
            )
        topic.states[number] = (state, stat)
        topic.former.pop(number, None)
        topic.changed_partitions.add(number)
        self._changed_topic(name)
