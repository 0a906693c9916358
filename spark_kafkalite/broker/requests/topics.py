"""Creating, extending and deleting topics through the controller, as several handlers do.

The controller writes the registry; clients want more than that: an answer only when the leaders are in place, settings
checked, the broker's defaults for what a request leaves open. Everything here is asynchronous and rare, and in slices:
one request may name ten thousand topics.

Topics are changed by the controller alone: :meth:`TopicAdmin.create` and its like give NotController (41) on any other
broker. Handlers send their requests to it then (``controller_link``), and so does what this broker wants for itself
(:meth:`TopicAdmin.make`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.requests.coming_partitions import Coming, ComingPartitions, Short
from spark_kafkalite.broker.requests.controller_link import ControllerLink
from spark_kafkalite.broker.requests.remote_leaders import LONGEST_WAIT_S, is_awaited, wait_until_served
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.settings.topic_overrides import TopicSettings
from spark_kafkalite.errors import (
    KafkaError,
    NotController,
    PolicyViolation,
    RegistryError,
    RequestTimedOut,
    TopicAlreadyExists,
)
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition, topic_name_problem
from spark_kafkalite.net.descriptors import Descriptors
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.registry.controller.controller import AskedMove, Chosen, Controller, Extension, TopicSpec
from spark_kafkalite.registry.store import SessionExpired
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices, Work, filled
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

# How long a metadata request waits for the topic that it caused; afterwards the client asks again anyway.
_AUTO_CREATE_WAIT_S = 2.0
_CREATE_VERSION = 7
# How long the controller has to begin with a change where clients ask for an answer at once; else this share of their
# time, so that they hear that it has not begun.
_REGISTRY_S = 5.0
_REGISTRY_SHARE = 0.9

Asked = TypeVar("Asked", TopicSpec, Extension)


class TopicAdmin:
    """See the module's text."""

    def __init__(
        self,
        config: DynamicConfig,
        topic_settings: TopicSettings,
        membership: ClusterMembership,
        view: ClusterView,
        replicas: Replicas,
        slices: Slices,
        descriptors: Descriptors,
        peers: Peers,
        connections: Callable[[], int],
    ) -> None:
        """``connections`` counts those that are open."""
        self._dynamic_config = config
        self._peers = peers
        self.controller_link = ControllerLink(config.current.broker_id, view, peers, lambda: self.is_controller)
        self._coming = ComingPartitions(config.current.broker_id, view, descriptors, connections)
        self._topic_settings = topic_settings
        self._membership = membership
        self._view = view
        self._replicas = replicas
        self._slices = slices

    @property
    def _config(self) -> BrokerConfig:
        return self._dynamic_config.current

    @property
    def _controller(self) -> Controller:
        """The present session's controller. Raises NotController (41) while there is no session."""
        try:
            return self._membership.session.controller
        except SessionExpired as error:
            raise NotController(f"broker {self._config.broker_id} is not the controller: {error}") from error

    async def create(
        self, topics: Sequence[TopicSpec], *, timeout_s: float, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Create topics and wait until their leaders serve, see :meth:`_not_served`; give each one's assignment, or its
        error.

        Creation goes on when the time is over: then the outcome is RequestTimedOut (7) where a partition has no leader.
        On a full disk nothing is created: KafkaStorageError (56); nor when descriptors would be short: PolicyViolation
        (44).
        """
        results: dict[str, TopicAssignment | KafkaError] = {}
        try:
            self.check_size(sum(topic.size for topic in topics))
            self._replicas.check_room()
        except KafkaError as error:
            return dict.fromkeys((topic.name for topic in topics), error)
        checked: list[TopicSpec] = []
        wanted: dict[str, Coming] = {}

        def check() -> Work[None]:
            for topic in topics:
                yield None
                try:
                    if topic.config:
                        self._topic_settings.check(topic.config)
                except KafkaError as error:
                    results[topic.name] = error.with_traceback(None)
                    continue
                checked.append(topic)
                if topic.name not in self._view.state.topics:
                    wanted[topic.name] = self._coming.of_new(topic)

        await self._slices.run(check())
        with self._coming.reserved(wanted) as short:
            accepted = await self._slices.run(self._divided(checked, short, results))
            return results | await self._create(accepted, timeout_s, validate_only)

    async def _create(
        self, accepted: Sequence[TopicSpec], timeout_s: float, validate_only: bool
    ) -> dict[str, TopicAssignment | KafkaError]:
        results: dict[str, TopicAssignment | KafkaError] = {}
        try:
            results |= await self._controller.create_topics(
                accepted, timeout_s=_until_written(timeout_s), validate_only=validate_only
            )
        except KafkaError as error:
            return results | {topic.name: error for topic in accepted}
        except RegistryError as error:
            return results | {topic.name: RequestTimedOut(f"the registry failed: {error}") for topic in accepted}
        if validate_only:
            return results
        created = {name: found for name, found in results.items() if isinstance(found, TopicAssignment)}
        for name in await self._not_served(created, timeout_s):
            results[name] = RequestTimedOut(
                f"topic {name} has been created, but a partition has no leader after {timeout_s} s"
            )
        return results

    def check_size(self, partition_count: int) -> None:
        """Raise PolicyViolation (44) when one request asks for more new partitions than is allowed.

        They are counted over the whole request. The whole request is then refused. Source:
        ReplicationControlManager.validateTotalNumberOfPartitions of Apache Kafka 4.3.
        """
        limit = self._config["max.partitions.per.request"]
        if partition_count > limit:
            raise PolicyViolation(
                f"Excessively large number of partitions per request. {partition_count} new ones are asked for in all; "
                f"max.partitions.per.request={limit} are the most, and none has been created: ask for fewer at a time"
            )

    def _divided(
        self, asked: Sequence[Asked], short: Mapping[str, Short], refused: dict[str, Any]
    ) -> Work[Sequence[Asked]]:
        """Return those of the topics that can be hosted; the errors of the others go into ``refused``."""
        for name, why in short.items():
            yield None
            refused[name] = self._coming.refusal(name, why)
        return (yield from filled([], (each for each in asked if each.name not in short))) if short else asked

    async def _not_served(self, created: Mapping[str, TopicAssignment], timeout_s: float) -> set[str]:
        """Wait until all partitions serve; return the topics of which some have no leader when the time is over.

        As in Kafka a partition has one when its leader is registered, whether that answers or not. Source:
        kafka.server.DelayedCreatePartitions.isMissingLeader of Apache Kafka 3.9. For leaders that are registered the
        answer waits a few seconds: the client uses next what it has created. It does not wait longer, nor for more than
        the first thousand partitions of each topic, because thousands of logs take their disk's time to be made, and
        clients try again until their leaders serve.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        served_until_s = loop.time() + min(timeout_s, LONGEST_WAIT_S)
        partitions = await self._slices.run(
            filled(
                [],
                (
                    (TopicPartition(name, number), assignment.topic_id)
                    for name, assignment in created.items()
                    for number in assignment.partitions
                ),
            )
        )
        leaderless = {key.topic for key in await self._left(self._replicas.has_leader, partitions, until_s)}
        led = [
            (key, topic_id) for key, topic_id in partitions if is_awaited(key.partition) and key.topic not in leaderless
        ]
        await self._left(self._replicas.serves, led, served_until_s)
        rest = {name: assignment.topic_id for name, assignment in created.items() if name not in leaderless}
        await wait_until_served(self._config.broker_id, self._view, self._peers, rest, served_until_s - loop.time())
        return leaderless

    async def _left(
        self,
        holds: Callable[[TopicPartition, bytes], bool],
        partitions: Iterable[tuple[TopicPartition, bytes]],
        until_s: float,
    ) -> list[TopicPartition]:
        """Wait until ``holds`` for all partitions, with their topic ids; return those for which it does not in time."""
        left = list(partitions)

        def all_hold() -> bool:
            # Each is looked at once it holds, and the last ones come last: a look at all of some thousand, after every
            # piece of the work, would take longer than the work.
            while left and holds(*left[-1]):
                left.pop()
            return not left

        await self._replicas.wait_until(all_hold, until_s - asyncio.get_running_loop().time())
        return [key for key, topic_id in left if not holds(key, topic_id)]

    async def create_automatically(self, names: Iterable[str], log_created: Callable[[str], None]) -> None:
        """Create those of the topics that a metadata request asked for which can be. The limits are those of
        :meth:`create`; the metadata that follows has no text for what fails, so it is logged. ``log_created`` gets the
        name of each topic that is created."""
        if not self._config["auto.create.topics.enable"]:
            return
        partitions, replicas = self._config["num.partitions"], self._config["default.replication.factor"]
        known = self._view.state.topics
        wanted: dict[str, TopicSpec] = {}

        def look() -> Work[None]:
            for name in names:
                yield None
                if name in known or name in wanted or name in INTERNAL_TOPICS or topic_name_problem(name) is not None:
                    continue
                wanted[name] = TopicSpec(name, partitions, replicas)
                # No more than it takes to see that they are too many.
                self.check_size(len(wanted) * partitions)

        try:
            await self._slices.run(look())
        except PolicyViolation as error:
            _quiet.log(logging.WARNING, "automatic", "no topic is created for a metadata request: %s", error)
            return
        if not wanted:
            return
        for name, outcome in (await self.make(list(wanted.values()), timeout_s=_AUTO_CREATE_WAIT_S)).items():
            if outcome is None:
                log_created(name)
            elif not isinstance(outcome, TopicAlreadyExists):
                _quiet.log(logging.WARNING, "automatic", "topic %s is not created automatically: %s", name, outcome)

    async def make(self, topics: Sequence[TopicSpec], *, timeout_s: float) -> dict[str, KafkaError | None]:
        """Have the controller create topics for this broker's own use; return each one's error.

        When this returns without an error, or with TopicAlreadyExists, this broker's view shows the topic.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        request = CreateTopicsRequest(topics=[_creatable(topic) for topic in topics], timeout_ms=int(timeout_s * 1000))
        try:
            answer = await self.controller_link.hand_on(request, _CREATE_VERSION, _is_refused)
        except KafkaError as error:
            return dict.fromkeys((topic.name for topic in topics), error)
        if answer is None:
            outcomes = await self.create(topics, timeout_s=timeout_s)
            return {name: found if isinstance(found, KafkaError) else None for name, found in outcomes.items()}
        results = {
            each.name: error_for(each.error_code, each.error_message) if each.error_code else None
            for each in answer.topics
        }
        await self.wait_for_creation(
            [name for name, error in results.items() if error is None or isinstance(error, TopicAlreadyExists)], until_s
        )
        return results

    async def wait_for_creation(self, names: Sequence[str], until_s: float) -> set[str]:
        """Wait until this broker's view shows topics that the controller has made; return those it does not in time."""
        left = list(names)

        def shown(_: ClusterState) -> bool:
            # As in _left.
            while left and left[-1] in self._view.state.topics:
                left.pop()
            return not left

        await self.controller_link.shows(shown, until_s - asyncio.get_running_loop().time())
        return {name for name in left if name not in self._view.state.topics}

    async def extend(
        self, extensions: Sequence[Extension], *, timeout_s: float, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        """Give topics more partitions and wait until their leaders serve; give each one's error, None for success.

        On a full disk: KafkaStorageError (56); when descriptors would be short: PolicyViolation (44).
        """
        topics = self._view.state.topics
        wanted: dict[str, Coming] = {}

        def look() -> Work[None]:
            for extension in extensions:
                yield None
                if extension.name in topics and extension.total > len(topics[extension.name].partitions):
                    wanted[extension.name] = self._coming.of_extension(extension, topics[extension.name])

        await self._slices.run(look())
        try:
            self.check_size(sum(each.added for each in wanted.values()))
            self._replicas.check_room()
        except KafkaError as error:
            return {extension.name: error for extension in extensions}
        results: dict[str, KafkaError | None] = {}
        # What is to be extended is no more than may be asked for, though a request may name far more.
        with self._coming.reserved(wanted) as short:
            accepted = await self._slices.run(self._divided(extensions, short, results))
            return results | await self._extend(accepted, timeout_s, validate_only)

    async def _extend(
        self, accepted: Sequence[Extension], timeout_s: float, validate_only: bool
    ) -> dict[str, KafkaError | None]:
        try:
            extended = await self._controller.extend_topics(
                accepted, timeout_s=_until_written(timeout_s), validate_only=validate_only
            )
        except KafkaError as error:
            return dict.fromkeys((extension.name for extension in accepted), error)
        except RegistryError as error:
            late = RequestTimedOut(f"the registry failed: {error}")
            return dict.fromkeys((extension.name for extension in accepted), late)
        results: dict[str, KafkaError | None] = {}
        done: dict[str, TopicAssignment] = {}

        def sort() -> Work[None]:
            for name, found in extended.items():
                yield None
                results[name] = found if isinstance(found, KafkaError) else None
                if isinstance(found, TopicAssignment):
                    done[name] = found

        await self._slices.run(sort())
        if validate_only:
            return results
        for name in await self._not_served(done, timeout_s):
            results[name] = RequestTimedOut(
                f"topic {name} has been extended, but a partition has no leader after {timeout_s} s"
            )
        return results

    async def elect(
        self,
        partitions: Sequence[TopicPartition] | None,
        *,
        timeout_s: float,
        unclean: bool,
        chosen: Mapping[TopicPartition, Chosen],
    ) -> dict[TopicPartition, KafkaError | None]:
        """Hold elections (``Controller.elect_leaders``); give each partition's error, None for success.

        Raises NotController (41), RequestTimedOut (7).
        """
        try:
            return await self._controller.elect_leaders(
                partitions, timeout_s=_until_written(timeout_s), unclean=unclean, chosen=chosen
            )
        except RegistryError as error:
            raise RequestTimedOut(f"the registry failed, and elections may have been held: {error}") from error

    async def reassign(
        self, asked: Sequence[AskedMove], *, timeout_s: float, allows_other_factor: bool
    ) -> dict[TopicPartition, KafkaError | None]:
        """Change reassignments (``Controller.reassign``); give each partition's error, None for success.

        Raises NotController (41), RequestTimedOut (7).
        """
        try:
            return await self._controller.reassign(
                asked, timeout_s=_until_written(timeout_s), allows_other_factor=allows_other_factor
            )
        except RegistryError as error:
            raise RequestTimedOut(f"the registry failed, and reassignments may have been changed: {error}") from error

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> dict[str, KafkaError | None]:
        """Delete topics and wait until this broker serves them no more; give each one's error, None for success."""
        ids = {name: topic.topic_id for name in names if (topic := self._view.state.topics.get(name)) is not None}
        try:
            results = await self._controller.delete_topics(names, timeout_s=_until_written(timeout_s))
        except KafkaError as error:
            return dict.fromkeys(names, error)
        except RegistryError as error:
            return dict.fromkeys(names, RequestTimedOut(f"the registry failed: {error}"))

        left = [(name, ids.get(name)) for name, error in results.items() if error is None]

        def gone() -> bool:
            # As in _left: each is looked at once it has gone, and the last ones go last.
            topics, unreadable = self._view.state.topics, self._view.state.unreadable_topics
            while left:
                name, topic_id = left[-1]
                if name in unreadable or (name in topics and topics[name].topic_id == topic_id):
                    break
                left.pop()
            return not left

        if not await self._replicas.wait_until(gone, timeout_s):
            late = RequestTimedOut(f"the deletion is not complete after {timeout_s} s; it continues")
            return {name: late if error is None else error for name, error in results.items()}
        return results

    @property
    def is_controller(self) -> bool:
        """Whether topics can be changed here."""
        try:
            return self._controller.is_active
        except NotController:
            return False

    def check_controller(self) -> None:
        """Raise NotController (41) unless topics can be changed here."""
        if not self.is_controller:
            raise NotController(f"broker {self._config.broker_id} is not the controller")


def _creatable(topic: TopicSpec) -> CreatableTopic:
    """Return a topic as a request names it; those that this broker makes for itself name no replicas."""
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in topic.config.items()]
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=configs,
    )


def _is_refused(answer: CreateTopicsResponse) -> bool:
    return any(each.error_code == NotController.code for each in answer.topics)


def _until_written(timeout_s: float) -> float:
    """Return for how long a change may wait for its turn and for the registry before anything of it is written."""
    return timeout_s * _REGISTRY_SHARE if timeout_s >= 1.0 else _REGISTRY_S
