"""Creates, extends and deletes topics in the registry, thousands in one go, for the controller.

What is asked for is planned in slices and written some at a time (``topic_writes``), each topic in a multi of its own
and those of a batch in one commit of the registry. The controller sees to it that one change, or election, runs at a
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import (
    InvalidPartitions,
    KafkaError,
    KafkaStorageError,
    NotController,
    ReassignmentInProgress,
    RegistryError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_kafkalite.registry import deleted_topics, znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, TopicState
from spark_kafkalite.registry.cluster.registration import make_base_nodes_again
from spark_kafkalite.registry.controller import topic_writes
from spark_kafkalite.registry.controller.role import ControllerRole
from spark_kafkalite.registry.controller.topic_plan import Extension, TopicSpec, planned_extension, planned_topics
from spark_kafkalite.registry.deleted_topics import DeletedTopics
from spark_kafkalite.registry.multi_pieces import pieces
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    Create,
    Delete,
    NodeError,
    NodeExists,
    NoNode,
    Operation,
    OutOfRoom,
    SetData,
    Store,
    Watcher,
    answer,
)
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# Markers of deletions that one turn takes; elections come between.
_FINISHED_AT_ONCE: Final = 500
# Nodes that are looked at together.
_LISTED_AT_ONCE: Final = 100


class TopicChanges:
    """See the module's text. Lives in the controller's event loop."""

    def __init__(self, store: Store, slices: Slices, role: ControllerRole, clock: Clock) -> None:
        self._store = store
        self._slices = slices
        self._role = role
        self._clock = clock
        # Held while the node of deleted topics is read and written.
        self._noting = asyncio.Lock()

    async def create(
        self, topics: Sequence[TopicSpec], state: ClusterState, *, validate_only: bool
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Create topics; give each one's assignment, or the error that it met. Raises NotController (41)."""
        planned = await self._slices.run(planned_topics(topics, state))
        if not validate_only:
            accepted = ((topic, topic.size) for topic in topics if isinstance(planned[topic.name], TopicAssignment))
            for batch in topic_writes.batches(accepted):
                outcomes = await asyncio.gather(
                    *(self._create_topic(topic, planned[topic.name], state) for topic in batch),
                    return_exceptions=True,
                )
                if any(isinstance(outcome, NoNode) for outcome in outcomes):
                    await make_base_nodes_again(self._store)
                _take_outcomes(planned, {topic.name: "creating" for topic in batch}, outcomes)
        return planned

    async def _create_topic(
        self, topic: TopicSpec, assignment: TopicAssignment | KafkaError, cluster: ClusterState
    ) -> TopicAssignment:
        assert isinstance(assignment, TopicAssignment)
        encoded = await self._encoded(topic.name, assignment)

        async def write(*, replaces_config: bool) -> None:
            partitions, live = assignment.partitions, cluster.brokers
            await self._write_in_pieces(
                topic_writes.creation(
                    topic,
                    assignment.topic_id,
                    encoded,
                    partitions,
                    live,
                    self._role.epoch,
                    replaces_config=replaces_config,
                )
            )

        try:
            try:
                await write(replaces_config=False)
            except NodeExists as error:
                if error.path != znodes.topic_config_path(topic.name):
                    raise
                await write(replaces_config=True)
        except NodeExists as error:
            raise TopicAlreadyExists(f"Topic '{topic.name}' already exists.") from error
        return assignment

    async def _encoded(self, name: str, assignment: TopicAssignment) -> bytes:
        encoded = await self._slices.run(assignment.encode_work())
        if len(encoded) > topic_writes.MAX_ASSIGNMENT_BYTES:
            raise InvalidPartitions(
                f"topic {name}: {len(assignment.partitions)} partitions take {len(encoded)} bytes in "
                f"the registry; {topic_writes.MAX_ASSIGNMENT_BYTES} are the most: use several topics"
            )
        return encoded

    async def _write_in_pieces(self, operations: Iterable[Operation]) -> None:
        for piece in pieces(operations):
            await self._role.write(piece)

    async def extend(
        self, extensions: Sequence[Extension], state: ClusterState, *, validate_only: bool
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Extend topics; give each one's assignment, or the error that it met. Raises NotController (41)."""
        results: dict[str, TopicAssignment | KafkaError] = {}
        known: list[Extension] = []

        def look() -> Work[None]:
            # A request may name very many that do not exist: no task for each of them.
            for extension in extensions:
                yield None
                if extension.name in state.topics:
                    known.append(extension)
                else:
                    results[extension.name] = _unknown(extension.name)

        await self._slices.run(look())
        sized = ((extension, max(extension.total, 1)) for extension in known)
        for batch in topic_writes.batches(sized):
            outcomes = await asyncio.gather(
                *(self._extend_topic(extension, state, validate_only=validate_only) for extension in batch),
                return_exceptions=True,
            )
            _take_outcomes(results, {extension.name: "adding partitions to" for extension in batch}, outcomes)
        return results

    async def _extend_topic(self, extension: Extension, state: ClusterState, *, validate_only: bool) -> TopicAssignment:
        name = extension.name
        topic = _known(state, name)
        data, stat = await answer(self._store.get(znodes.topic_path(name)))
        old = await self._slices.run(TopicAssignment.decode_work(name, data))
        if old.adding or old.removing:
            raise ReassignmentInProgress(
                f"topic {name}: {len(old.adding.keys() | old.removing.keys())} of its partitions are being reassigned; "
                "add partitions when that has ended"
            )
        added = await self._slices.run(planned_extension(extension, old, state))
        extended = replace(old, topic_id=topic.topic_id, partitions={**old.partitions, **added})
        encoded = await self._encoded(name, extended)
        if not validate_only:
            topic_node = SetData(znodes.topic_path(name), encoded, stat.version)
            await self._write_in_pieces(
                chain([topic_node], topic_writes.new_partitions(name, added, state.brokers, self._role.epoch))
            )
        return extended

    async def delete(self, names: Sequence[str], state: ClusterState) -> dict[str, KafkaError | None]:
        """Remove topics; give each one's error, None for success. Raises NotController (41)."""
        results: dict[str, KafkaError | None] = {}
        names_marked: list[str] = await answer(self._store.children(znodes.DELETED_TOPICS))
        marked = set(names_marked)
        known = {name: topic for name in names if (topic := state.topics.get(name)) is not None}
        for batch in topic_writes.batches((name, len(topic.partitions)) for name, topic in known.items()):
            outcomes: Sequence[Any]
            try:
                await self._note_deletions(known[name].topic_id for name in batch)
            except (KafkaError, RegistryError) as error:
                outcomes = [error] * len(batch)
            else:
                outcomes = await asyncio.gather(
                    *(self._delete_topic(name, known[name], marked=name in marked) for name in batch),
                    return_exceptions=True,
                )
            _take_outcomes(results, dict.fromkeys(batch, "deleting"), outcomes)
        unreadable = [name for name in dict.fromkeys(names) if name in state.unreadable_topics]
        outcomes = await asyncio.gather(*map(self._delete_unreadable, unreadable), return_exceptions=True)
        _take_outcomes(results, dict.fromkeys(unreadable, "deleting"), outcomes)
        for name in names:
            if name not in known and name not in results:
                results[name] = _unknown(name)
        return results

    async def _note_deletions(self, topic_ids: Iterable[bytes]) -> None:
        """Add topics to those whose logs brokers delete, before anything of them is removed."""
        named = {znodes.uuid_text(topic_id) for topic_id in topic_ids if topic_id != znodes.NO_TOPIC_ID}
        async with self._noting:
            noted, version = DeletedTopics(), -1
            with contextlib.suppress(NoNode):
                data, stat = await answer(self._store.get(deleted_topics.PATH))
                version = stat.version
                try:
                    noted = DeletedTopics.decode(data)
                except MalformedNode as malformed:
                    _LOG.error("%s; it is replaced by one with the topics that are deleted now", malformed)
            if named <= noted.deleted_ms.keys():
                return
            encoded = noted.with_added(sorted(named), self._clock.wall_ms()).encode()
            path = deleted_topics.PATH
            await self._role.write([Create(path, encoded) if version < 0 else SetData(path, encoded, version)])

    async def _delete_topic(self, name: str, topic: TopicState, *, marked: bool) -> None:
        marker = znodes.deleted_topic_path(name)
        if not marked and not topic_writes.fits_one_multi(topic):
            await self._role.write([Create(marker)])
            marked = True
        try:
            last = [Delete(marker)] if marked else []
            await self._write_in_pieces(chain(topic_writes.deletion(name, topic), last))
        except NodeError:
            # There is less, or more, than a topic of ours consists of.
            await self._delete_found(name)

    async def _delete_unreadable(self, name: str) -> None:
        # Raises NoAuth before there is a marker, which the controller would try again for as long as it is refused.
        await self._topic_id_of(name)
        await self._delete_found(name)

    async def _delete_found(self, name: str) -> None:
        """Delete whatever there is of a topic, and its marker last."""
        marker, config = znodes.deleted_topic_path(name), znodes.topic_config_path(name)
        with contextlib.suppress(NodeExists):
            await self._role.write([Create(marker)])
        topic_id = await self._topic_id_of(name)
        await self._note_deletions([topic_id])
        paths = await self._guard_of(topic_id)
        paths += reversed(await self._subtree(znodes.topic_path(name)))
        if await answer(self._store.exists(config)):
            paths.append(config)
        await self._write_in_pieces(Delete(path) for path in (*paths, marker))

    async def _topic_id_of(self, name: str) -> bytes:
        """Return the id in a topic's node, NO_TOPIC_ID where there is none, or no node that can be read."""
        try:
            data, _ = await answer(self._store.get(znodes.topic_path(name)))
            return (await self._slices.run(TopicAssignment.decode_work(name, data))).topic_id
        except (NoNode, MalformedNode):
            return znodes.NO_TOPIC_ID  # its guard is taken away by complete_guards, its logs are set aside

    async def _guard_of(self, topic_id: bytes) -> list[str]:
        """Return the path of the guard of a topic, if there is one."""
        path = znodes.topic_guard_path(topic_id)
        stat = None if topic_id == znodes.NO_TOPIC_ID else await answer(self._store.exists(path))
        return [] if stat is None else [path]

    async def complete_guards(self, state: ClusterState) -> None:
        """Make the guards (rule R14) of topics that have none, as those of earlier versions, and take away those that
        no topic has any more."""
        names: list[str] = await answer(self._store.children(znodes.TOPIC_GUARDS))

        def compare() -> Work[tuple[list[Operation], list[Operation]]]:
            missing, present = {}, set(names)
            for topic in state.topics.values():
                yield None
                name = znodes.uuid_text(topic.topic_id)
                if name in present:
                    present.discard(name)
                else:
                    missing[name] = Create(znodes.topic_guard_path(topic.topic_id))
            if state.unreadable_topics or state.topics_without_id:
                # One of these may be whose they are.
                present.clear()
            return list(missing.values()), [Delete(f"{znodes.TOPIC_GUARDS}/{name}") for name in sorted(present)]

        missing, left_over = await self._slices.run(compare())
        await self._write_in_pieces(chain(missing, left_over))

    async def put_ids_back(self, state: ClusterState, ids_of_logs: Callable[[str], set[str]]) -> None:
        """Write the ids of topics into nodes that a tool for older versions of Kafka has written without: under another
        id brokers would set all logs of the topic aside. Raises NodeError where one is written again meanwhile.

        ``ids_of_logs`` gives which topics' logs brokers have reported of a topic. Logs may be those of an older topic
        of the name, so an id counts only if its guard stands: that goes before all else of a topic (R14).
        """
        for name in sorted(state.topics_without_id):
            topic_id = state.topics[name].topic_id
            if topic_id == znodes.NO_TOPIC_ID:
                reported = sorted(map(znodes.uuid_bytes, ids_of_logs(name)))
                certain = [each for each in reported if await self._guard_of(each)]
                if len(certain) != 1:
                    continue
                topic_id = certain[0]
            try:
                data, stat = await answer(self._store.get(znodes.topic_path(name)))
                assignment = await self._slices.run(TopicAssignment.decode_work(name, data))
                if assignment.topic_id != znodes.NO_TOPIC_ID:
                    continue
                encoded = await self._encoded(name, replace(assignment, topic_id=topic_id))
                await self._role.write([SetData(znodes.topic_path(name), encoded, stat.version)])
            except (MalformedNode, NoNode, InvalidPartitions) as error:
                _LOG.warning("the id of topic %s could not be put back: %s", name, error)
            else:
                _LOG.warning(
                    "put the id %s of topic %s back into registry node %s, which was written without it, as tools for "
                    "older versions of Kafka do",
                    znodes.uuid_text(topic_id),
                    name,
                    znodes.topic_path(name),
                )

    async def _subtree(self, path: str) -> list[str]:
        """Return the paths at and below ``path``, parents first; none when it does not exist."""
        found: list[str] = []
        level = [path] if await answer(self._store.exists(path)) else []
        while level:
            found += level
            below: list[str] = []
            for first in range(0, len(level), _LISTED_AT_ONCE):
                parents = level[first : first + _LISTED_AT_ONCE]
                children: list[list[str]] = await asyncio.gather(
                    *(answer(self._store.children(parent)) for parent in parents)
                )
                below += [f"{parent}/{name}" for parent, names in zip(parents, children, strict=True) for name in names]
            level = below
        return found

    async def finish_deletions(self, on_marker: Watcher) -> bool:
        """Finish some of what a former controller, or a tool that writes the marker, has begun; ``on_marker`` gets the
        event of the next marker. Return whether there is more: elections must not wait for thousands of markers."""
        marked: list[str] = await answer(self._store.children(znodes.DELETED_TOPICS, on_marker))
        names = marked[:_FINISHED_AT_ONCE]
        paths = [(znodes.topic_path(name), znodes.topic_config_path(name)) for name in names]
        stats = await asyncio.gather(*(answer(self._store.exists(path)) for both in paths for path in both))
        found = {name for index, name in enumerate(names) if any(stats[2 * index : 2 * index + 2])}
        await self._write_in_pieces(Delete(znodes.deleted_topic_path(name)) for name in names if name not in found)
        for name in sorted(found):
            _LOG.info("finishing the deletion of topic %s", name)
            await self._delete_found(name)
        return len(marked) > len(names)


def _unknown(name: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"The topic '{name}' does not exist.")


def _known(state: ClusterState, name: str) -> TopicState:
    topic = state.topics.get(name)
    if topic is None:
        raise _unknown(name)
    return topic


def _take_outcomes(results: dict[str, Any], doing: Mapping[str, str], outcomes: Sequence[Any]) -> None:
    """Put the outcomes of some topics among the results. Raises NotController, and unexpected errors."""
    for (name, what), outcome in zip(doing.items(), outcomes, strict=True):
        if isinstance(outcome, NotController):
            raise outcome
        if isinstance(outcome, (KafkaError, RegistryError)):
            # Without its frames, which would live as long: there may be thousands.
            outcome = _as_kafka_error(outcome, f"{what} topic {name}").with_traceback(None)
        elif isinstance(outcome, BaseException):
            raise outcome
        results[name] = outcome


def _as_kafka_error(error: KafkaError | RegistryError, what: str) -> KafkaError:
    """Turn a registry's error into one with a wire code."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, OutOfRoom):
        return KafkaStorageError(f"{what}: {error}")
    if isinstance(error, NoNode):
        return RequestTimedOut(f"{what}: {error}: it was removed by hand; try again")
    return RequestTimedOut(f"{what}: the registry did not answer ({error}); it may or may not have been done")
