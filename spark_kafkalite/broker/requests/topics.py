"""Creating, extending and deleting topics through the controller, as several handlers do.

The controller writes the registry; clients want more than that: an answer only when the leaders are in place, settings
checked, the broker's defaults for what a request leaves open. Everything here is asynchronous and rare, and in slices:
one request may name ten thousand topics.

This broker acts only while it is the controller; otherwise NotController (41) tells clients to ask the one that is.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from spark_kafkalite.broker.descriptors import Descriptors
from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.replication.replicas import Replicas
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
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.registry.controller.controller import Controller, Extension, TopicSpec
from spark_kafkalite.registry.store import SessionExpired
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices, Work

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

# How long a metadata request waits for the topic that it caused; afterwards the client asks again anyway.
_AUTO_CREATE_WAIT_S = 2.0


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
        connections: Callable[[], int],
    ) -> None:
        """``connections`` counts those that are open."""
        self._dynamic_config = config
        self._descriptors = descriptors
        self._connections = connections
        # How many partitions topics will have that are being made or extended: the registry does not say so yet.
        self._coming: Counter[str] = Counter()
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
        """Create topics and wait until their leaders serve; give each one's assignment, or its error.

        Creation goes on when the time is over: then the outcome is RequestTimedOut (7). On a full disk nothing is
        created: KafkaStorageError (56); nor when descriptors would be short: PolicyViolation (44).
        """
        results: dict[str, TopicAssignment | KafkaError] = {}
        try:
            self.check_size(sum(topic.size for topic in topics))
            self._replicas.check_room()
        except KafkaError as error:
            return dict.fromkeys((topic.name for topic in topics), error)
        checked: list[TopicSpec] = []

        def check() -> Work[None]:
            for topic in topics:
                yield None
                try:
                    if topic.config:
                        self._topic_settings.check(topic.config)
                    checked.append(topic)
                except KafkaError as error:
                    results[topic.name] = error.with_traceback(None)

        await self._slices.run(check())
        known = self._view.state.topics
        new = {topic.name: topic.size for topic in checked if topic.name not in known}
        refused = self._short_of_descriptors(new)
        accepted = [topic for topic in checked if topic.name not in refused]
        with self._counted({name: size for name, size in new.items() if name not in refused}):
            return results | refused | await self._create(accepted, timeout_s, validate_only)

    async def _create(
        self, accepted: Sequence[TopicSpec], timeout_s: float, validate_only: bool
    ) -> dict[str, TopicAssignment | KafkaError]:
        results: dict[str, TopicAssignment | KafkaError] = {}
        try:
            results |= await self._controller.create_topics(accepted, validate_only=validate_only)
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

        They are counted over the whole request, and then none of it is done. Source:
        ReplicationControlManager.validateTotalNumberOfPartitions of Apache Kafka 4.3.
        """
        limit = self._config["max.partitions.per.request"]
        if partition_count > limit:
            raise PolicyViolation(
                f"Excessively large number of partitions per request. {partition_count} new ones are asked for in all; "
                f"max.partitions.per.request={limit} are the most, and none has been created: ask for fewer at a time"
            )

    def _partition_count(self) -> int:
        """Return how many partitions there are or are being made; all are this broker's, which is the only one."""
        topics = self._view.state.topics
        coming = sum(
            max(count - len(topics[name].partitions) if name in topics else count, 0)
            for name, count in self._coming.items()
        )
        return coming + sum(len(topic.partitions) for topic in topics.values())

    def _short_of_descriptors(self, wanted: Mapping[str, int]) -> dict[str, KafkaError]:
        """Return, of topics and how many partitions each is to get, those that cannot be hosted, and why.

        Not in slices: nobody else may come between this and :meth:`_counted`. Ten thousand topics take milliseconds.
        """
        hosted, connections = self._partition_count(), self._connections()
        refused: dict[str, KafkaError] = {}
        for name, more in wanted.items():
            try:
                self._descriptors.check_new_partitions(f"topic {name}", more, hosted, connections)
                hosted += more
            except PolicyViolation as error:
                refused[name] = error
        return refused

    @contextlib.contextmanager
    def _counted(self, totals: Mapping[str, int]) -> Iterator[None]:
        """Have other requests count these topics' partitions meanwhile, though the registry does not name them."""
        for name, total in totals.items():
            self._coming[name] += total
        try:
            yield
        finally:
            for name, total in totals.items():
                self._coming[name] -= total
                if not self._coming[name]:
                    del self._coming[name]

    async def _not_served(self, created: Mapping[str, TopicAssignment], timeout_s: float) -> set[str]:
        """Wait until all partitions serve; return the topics of which some do not when the time is over."""
        left = [
            (TopicPartition(name, number), assignment.topic_id)
            for name, assignment in created.items()
            for number in assignment.partitions
        ]

        def all_served() -> bool:
            # Each is looked at once it serves, and the last ones come last: a look at all of some thousand, after every
            # piece of the work, would take longer than the work.
            while left and self._replicas.serves(*left[-1]):
                left.pop()
            return not left

        await self._replicas.wait_until(all_served, timeout_s)
        return {partition.topic for partition, topic_id in left if not self._replicas.serves(partition, topic_id)}

    async def create_automatically(self, names: Iterable[str]) -> None:
        """Create those of the topics that a metadata request asked for which can be. The limits are those of
        :meth:`create`; the metadata that follows has no text for what fails, so it is logged."""
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
        for name, outcome in (await self.create(list(wanted.values()), timeout_s=_AUTO_CREATE_WAIT_S)).items():
            if isinstance(outcome, KafkaError) and not isinstance(outcome, TopicAlreadyExists):
                _quiet.log(logging.WARNING, "automatic", "topic %s is not created automatically: %s", name, outcome)

    async def extend(
        self, extensions: Sequence[Extension], *, timeout_s: float, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        """Give topics more partitions and wait until their leaders serve; give each one's error, None for success.

        On a full disk: KafkaStorageError (56); when descriptors would be short: PolicyViolation (44).
        """
        topics = self._view.state.topics
        totals: dict[str, int] = {}
        added: dict[str, int] = {}

        def look() -> Work[None]:
            for extension in extensions:
                yield None
                if extension.name in topics and extension.total > len(topics[extension.name].partitions):
                    totals[extension.name] = extension.total
                    added[extension.name] = extension.total - len(topics[extension.name].partitions)

        await self._slices.run(look())
        try:
            self.check_size(sum(added.values()))
            self._replicas.check_room()
        except KafkaError as error:
            return {extension.name: error for extension in extensions}
        # What is to be extended is no more than may be asked for, though a request may name far more.
        refused = self._short_of_descriptors(added)
        if refused:
            extensions = [extension for extension in extensions if extension.name not in refused]
        with self._counted({name: total for name, total in totals.items() if name not in refused}):
            results = await self._extend(extensions, timeout_s, validate_only)
        results.update(refused)
        return results

    async def _extend(
        self, accepted: Sequence[Extension], timeout_s: float, validate_only: bool
    ) -> dict[str, KafkaError | None]:
        try:
            extended = await self._controller.extend_topics(accepted, validate_only=validate_only)
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

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> dict[str, KafkaError | None]:
        """Delete topics and wait until this broker serves them no more; give each one's error, None for success."""
        ids = {name: topic.topic_id for name in names if (topic := self._view.state.topics.get(name)) is not None}
        try:
            results = await self._controller.delete_topics(names)
        except KafkaError as error:
            return dict.fromkeys(names, error)
        except RegistryError as error:
            return dict.fromkeys(names, RequestTimedOut(f"the registry failed: {error}"))

        left = [(name, ids.get(name)) for name, error in results.items() if error is None]

        def gone() -> bool:
            # As in _not_served: each is looked at once it has gone, and the last ones go last.
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
