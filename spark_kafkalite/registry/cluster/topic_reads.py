"""What a session reads about topics: their list and, of each, its node, its settings and its partitions' states.

A topic is identified by the creation of its node: one that is made again under its name is read afresh (rule R10). A
node that cannot be read, because of what it holds or of its access control list, costs only its own content: a topic's
node the topic, its settings' node the settings, a partition's state that partition. What was known of it before stays.

Two watches of trees report every change, so that the registry keeps no watch for each topic. An event names a node,
which is read again. Nothing is lost between watching and reading: the watches are left first, and what is reported of a
topic that is not known yet is read when its node has been read.

Everything here runs from the queue of ``node_reads``, but for :meth:`TopicReads.changed`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from spark_kafkalite.model import topic_name_problem
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import TopicState
from spark_kafkalite.registry.cluster.node_reads import NodeReads
from spark_kafkalite.registry.cluster.watched_topic import WatchedTopic
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import NoAuth, Stat, Store, WatchEvent
from spark_kafkalite.slices import Work

_LOG = logging.getLogger(__name__)

# What is done for so many partitions takes no more than a part of a millisecond.
_PARTITIONS_AT_ONCE: Final = 50
# What watches of trees are left on.
WATCHED_TREES: Final = (znodes.TOPICS, znodes.TOPIC_CONFIGS)
# The parts of the paths that matter, and where among them the topic and the partition are.
_OF_TOPIC: Final = znodes.topic_path("").split("/")[:-1]
_OF_CONFIG: Final = znodes.topic_config_path("").split("/")[:-1]
_OF_STATE: Final = znodes.state_path("T", 0).split("/")

# A topic's node, its settings' node (-1), or a partition's state node (its number): the name and which of them.
_Reported = tuple[str, int]
# What a node holds, or why this session may not read that; None where there is no node.
_Read = tuple[bytes, Stat] | NoAuth | None
# Of a node that may not be read: older than all that may be read there later.
_UNKNOWN_STAT: Final = Stat(*[0] * len(Stat._fields))
_TOPIC_NODE: Final = -2
_CONFIG_NODE: Final = -1


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
        # Nodes that have changed and are not being read again yet, each once. Filled in the store's thread.
        self._reported: deque[_Reported] = deque()
        self._waiting: set[_Reported] = set()
        self._told = False
        # How many nodes the last reading of everything has read.
        self.node_count = 0
        # What is published; replaced by each publication that changes anything.
        self.published: dict[str, TopicState] = {}

    def publish(self) -> Work[Mapping[str, Collection[int]]]:
        """Bring :attr:`published` up to what has been read, and return the names of the topics that differ, with the
        partitions that may."""
        names, self._dirty = self._dirty, set()
        self.changes = 0
        differing: dict[str, Collection[int]] = {}
        if names:
            published = self.published.copy()
            for name in sorted(names):
                topic = self._topics.get(name)
                differing[name] = () if topic is None else tuple(topic.changed_partitions)
                state = None if topic is None else topic.publish()
                if state is None:
                    published.pop(name, None)
                else:
                    published[name] = state
                yield None
            self.published = published
        return differing

    def changed(self, event: WatchEvent) -> None:
        """Take an event of a watched tree. In the store's thread."""
        reported = _reported(event.path)
        if reported is None or reported in self._waiting:
            return
        self._waiting.add(reported)
        self._reported.append(reported)
        # One entry in the queue for all that come before it is taken.
        if not self._told:
            self._told = True
            self._reads.put(self._read_reported)

    def _read_reported(self) -> Work[None]:
        # In this order: what is reported after the last look is told again.
        self._told = False
        while self._reported:
            reported = self._reported.popleft()
            # Before it is read: a change from now on is another one.
            self._waiting.discard(reported)
            name, which = reported
            topic = self._topics.get(name)
            if which == _TOPIC_NODE:
                if topic is not None or self._is_topic_name(name):
                    self._read_topic(name)
            elif topic is None:
                pass  # it is read when the topic's node has been
            elif which == _CONFIG_NODE:
                self._read_config(name)
            else:
                self._read_state(name, which, topic.generation)
            yield None

    def read_all(self) -> Work[None]:
        """Read everything again."""
        self.node_count = 0
        self.read_list()
        for name, topic in list(self._topics.items()):
            self.node_count += 2 + len(topic.assignment.partitions)
            topic.is_read_again = True
            self._read_topic(name)
            yield None

    def _changed_topic(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is not None and not topic.is_read:
            return  # what is there of it is published with the rest
        self._dirty.add(name)
        self.changes += 1
        self._on_change()

    def read_list(self) -> None:
        """Read which topics there are, and those that are new."""
        self._reads.read(lambda: self._store.children(znodes.TOPICS), self._apply_topic_list)

    def _apply_topic_list(self, names: list[str] | None) -> Work[None]:
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

    def _read_topic(self, name: str) -> None:
        self._reads.read_node(znodes.topic_path(name), self._apply_topic, name)

    def _apply_topic(self, name: str, result: _Read) -> Work[None]:
        if result is None:
            self._forget_topic(name)
            return
        topic = self._topics.get(name)
        if isinstance(result, NoAuth):
            if topic is not None:
                raise result
            self._cannot_serve(name, _UNKNOWN_STAT, result)
            return
        data, stat = result
        if topic is not None and topic.assignment_zxid > stat.mzxid:
            return
        try:
            assignment = yield from znodes.TopicAssignment.decode_work(name, data)
        except MalformedNode as malformed:
            if topic is not None and topic.generation == stat.czxid:
                raise
            self._cannot_serve(name, stat, malformed)
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
            topic = self._topics[name] = WatchedTopic(stat.czxid, assignment, stat.mzxid)
            topic.unread.update(assignment.partitions)
        elif topic.assignment_zxid != stat.mzxid:
            topic.assignment, topic.assignment_zxid = assignment, stat.mzxid
            topic.unread.intersection_update(assignment.partitions)
        topic.changed_partitions.update(assignment.partitions)
        self._changed_topic(name)
        # Else their changes are reported.
        everything, topic.is_read_again = topic.is_read_again, False
        if everything or topic.config is None:
            self._read_config(name)
        for index, number in enumerate(assignment.partitions):
            if everything or number not in topic.states:
                self._read_state(name, number, topic.generation)
            if index % _PARTITIONS_AT_ONCE == 0:
                yield None

    def _cannot_serve(self, name: str, stat: Stat, error: MalformedNode | NoAuth) -> None:
        if self.unreadable.get(name) != stat.mzxid:
            self._forget_topic(name)
            _LOG.error("topic %s is not served, its logs are kept: %s; %s", name, error, _remedy(error))
            self.unreadable[name] = stat.mzxid
            self._on_change()

    def _read_config(self, name: str) -> None:
        self._reads.read_node(znodes.topic_config_path(name), self._apply_config, name)

    def _apply_config(self, name: str, result: _Read) -> None:
        topic = self._topics.get(name)
        if topic is None:
            return
        data, stat = (result, _UNKNOWN_STAT) if result is None or isinstance(result, NoAuth) else result
        zxid = -1 if data is None else stat.mzxid
        if topic.config is not None and zxid == topic.config_zxid:
            return
        if data is None and topic.config:
            return  # somebody has removed the node of a topic that exists: the controller makes it again (lost_nodes)
        try:
            config = {} if data is None else znodes.decode_config(znodes.topic_config_path(name), _allowed(data))
        except (MalformedNode, NoAuth) as error:
            if topic.config is not None:
                raise
            # Without settings the topic would not be served at all.
            _LOG.error("topic %s has the default settings: %s; %s", name, error, _remedy(error))
            config = {}
        topic.config, topic.config_zxid = config, zxid
        self._changed_topic(name)

    def _read_state(self, name: str, number: int, generation: int) -> None:
        self._reads.read_node(znodes.state_path(name, number), self._apply_state, name, number, generation)

    def _apply_state(self, name: str, number: int, generation: int, result: _Read) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.generation != generation:
            return
        was_read = topic.is_read
        topic.unread.discard(number)
        if topic.is_read and not was_read:
            self._changed_topic(name)
        if result is None:
            if topic.forget_state(number):
                self._changed_topic(name)
            return
        known = topic.states.get(number)
        if isinstance(result, NoAuth) and known is not None and known[0] is not None:
            raise result
        data, stat = (result, _UNKNOWN_STAT) if isinstance(result, NoAuth) else result
        if known is not None and known[1].mzxid >= stat.mzxid:
            return
        if isinstance(data, bytes) and stat.czxid < topic.generation:
            return
        state: znodes.LeaderAndIsr | None = None
        try:
            state = znodes.LeaderAndIsr.decode(name, number, _allowed(data))
        except (MalformedNode, NoAuth) as error:
            if known is not None and known[0] is not None:
                raise
            _LOG.error("partition %s-%d is offline: %s; %s", name, number, error, _remedy(error))
        topic.states[number] = (state, stat)
        topic.former.pop(number, None)
        topic.changed_partitions.add(number)
        self._changed_topic(name)


def _allowed(data: bytes | NoAuth) -> bytes:
    """Return what a node holds. Raises NoAuth."""
    if isinstance(data, NoAuth):
        raise data
    return data


def _remedy(error: MalformedNode | NoAuth) -> str:
    """Return what to do about a topic's node, or a partition's, that cannot be read."""
    if isinstance(error, NoAuth):
        return "let this broker read the node (setAcl), or delete the node in the registry"
    return "write what it should hold, or delete the topic"


def _reported(path: str) -> _Reported | None:
    """Return what a path that has changed is, None where nothing is read there."""
    parts = path.split("/")
    above, name = parts[:3], parts[3] if len(parts) > 3 else ""
    if len(parts) == 4:
        if above == _OF_TOPIC:
            return name, _TOPIC_NODE
        return (name, _CONFIG_NODE) if above == _OF_CONFIG else None
    if len(parts) == len(_OF_STATE) and above == _OF_TOPIC and parts[-1] == _OF_STATE[-1]:
        number = znodes.partition_of(parts[5])
        return None if number is None else (name, number)
    return None
