"""Creating, extending and deleting topics: what the handlers share on top of the controller.

The controller writes the registry; clients want more than that: an answer only when the leaders are in place, settings
checked, the broker's defaults for what a request leaves open. Everything here is asynchronous and rare.

This broker acts only while it is the controller; otherwise NotController (41) tells clients to ask the one that is.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from spark_kafkalite.broker.config import BrokerConfig
from spark_kafkalite.broker.descriptors import Descriptors
from spark_kafkalite.broker.dynamic_config import DynamicConfig
from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.replicas import Replicas
from spark_kafkalite.errors import (
    ConfigError,
    InvalidConfig,
    KafkaError,
    NotController,
    PolicyViolation,
    RegistryError,
    RequestTimedOut,
    TopicAlreadyExists,
)
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.registry.controller import Controller, NewTopic
from spark_kafkalite.registry.watcher import ClusterWatcher
from spark_kafkalite.registry.znodes import TopicAssignment

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

# How long a metadata request waits for the topic that it caused; afterwards the client asks again anyway.
_AUTO_CREATE_WAIT_S = 2.0


class Topics:
    """See the module's text."""

    def __init__(
        self,
        config: DynamicConfig,
        controller: Controller,
        watcher: ClusterWatcher,
        replicas: Replicas,
        descriptors: Descriptors,
        connections: Callable[[], int],
    ) -> None:
        """``connections`` counts those that are open."""
        self._dynamic_config = config
        self._descriptors = descriptors
        self._connections = connections
        # How many partitions topics will have that are being made or extended: the registry does not say so yet.
        self._coming: Counter[str] = Counter()
        # What was found wrong with topics' settings in the registry.
        self._reported: dict[str, list[str]] = {}
        self._controller = controller
        self._watcher = watcher
        self._replicas = replicas

    @property
    def _config(self) -> BrokerConfig:
        return self._dynamic_config.current

    def check_config(self, overrides: Mapping[str, object]) -> None:
        """Raise InvalidConfig (40) for topic settings that are unknown or have a bad value."""
        try:
            TopicConfig.from_properties(overrides, self._config.topic_defaults)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from error

    def config_of(self, name: str) -> TopicConfig:
        """Return a topic's settings in force: its own over the broker's defaults.

        What another program wrote into the registry may be wrong; then the wrong settings are left out, because a topic
        that exists must be served.
        """
        topic = self._watcher.state.topics.get(name)
        overrides = topic.config if topic is not None else {}
        config, problems = TopicConfig.in_force(overrides, self._config.topic_defaults)
        # Once, though each of its partitions asks.
        if problems and self._reported.get(name) != problems:
            self._reported[name] = problems
            for problem in problems:
                logger.warning("ignoring a setting of topic %s in the registry: %s", name, problem)
        return config

    async def create(
        self, topics: Sequence[NewTopic], *, timeout_s: float, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Create topics and wait until their leaders serve; give each one's assignment, or its error.

        Creation goes on when the time is over: then the outcome is RequestTimedOut (7). On a full disk nothing is
        created: KafkaStorageError (56); nor when descriptors would be short: PolicyViolation (44).
        """
        results: dict[str, TopicAssignment | KafkaError] = {}
        accepted: dict[str, NewTopic] = {}
        hosted = self._partition_count()
        for topic in topics:
            try:
                count = self._check_size(topic)
                self._replicas.check_room()
                self.check_config(topic.config)
                if topic.name not in self._watcher.state.topics:
                    self._check_descriptors(topic.name, count, hosted)
                    hosted += count
                accepted[topic.name] = topic
            except KafkaError as error:
                results[topic.name] = error
        with self._counted({name: _partition_count(topic) for name, topic in accepted.items()}):
            return results | await self._create(list(accepted.values()), timeout_s, validate_only)

    async def _create(
        self, accepted: Sequence[NewTopic], timeout_s: float, validate_only: bool
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

    def _check_size(self, topic: NewTopic) -> int:
        limit = self._config["max.partitions.per.request"]
        count = _partition_count(topic)
        if count > limit:
            raise PolicyViolation(
                f"topic {topic.name}: {count} partitions are more than max.partitions.per.request={limit}"
            )
        return count

    def _partition_count(self) -> int:
        """Return how many partitions there are or are being made; all are this broker's, which is the only one."""
        topics = self._watcher.state.topics
        coming = sum(
            max(count - len(topics[name].partitions) if name in topics else count, 0)
            for name, count in self._coming.items()
        )
        return coming + sum(len(topic.partitions) for topic in topics.values())

    def _check_descriptors(self, name: str, more: int, hosted: int) -> None:
        self._descriptors.check_new_partitions(f"topic {name}", more, hosted, self._connections())

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

    async def create_automatically(self, names: Sequence[str]) -> None:
        """Create topics that a metadata request asked for; the metadata that follows has no text for what fails, so
        it is logged."""
        if not self._config["auto.create.topics.enable"]:
            return
        wanted = [
            NewTopic(name, self._config["num.partitions"], self._config["default.replication.factor"])
            for name in dict.fromkeys(names)
            if name not in INTERNAL_TOPICS
        ]
        if not wanted:
            return
        for name, outcome in (await self.create(wanted, timeout_s=_AUTO_CREATE_WAIT_S)).items():
            if isinstance(outcome, KafkaError) and not isinstance(outcome, TopicAlreadyExists):
                _quiet.log(logging.WARNING, "automatic", "topic %s is not created automatically: %s", name, outcome)

    async def add_partitions(
        self,
        name: str,
        total: int,
        assignment: Sequence[Sequence[int]] | None,
        *,
        timeout_s: float,
        validate_only: bool = False,
    ) -> None:
        """Extend a topic and wait until the new leaders serve. Raises the controller's errors, PolicyViolation (44) for
        too many partitions or too few descriptors, KafkaStorageError (56) when the disk is full."""
        topic = self._watcher.state.topics.get(name)
        limit = self._config["max.partitions.per.request"]
        more = total - len(topic.partitions) if topic is not None else 0
        if more > limit:
            raise PolicyViolation(f"topic {name}: {more} more partitions are above max.partitions.per.request={limit}")
        self._replicas.check_room()
        if more > 0:
            self._check_descriptors(name, more, self._partition_count())
        with self._counted({name: total} if more > 0 else {}):
            try:
                extended = await self._controller.create_partitions(
                    name, total, assignment, validate_only=validate_only
                )
            except RegistryError as error:
                raise RequestTimedOut(f"the registry failed: {error}") from error
            if validate_only:
                return
            if await self._not_served({name: extended}, timeout_s):
                raise RequestTimedOut(
                    f"topic {name} has been extended, but a partition has no leader after {timeout_s} s"
                )

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> dict[str, KafkaError | None]:
        """Delete topics and wait until this broker serves them no more; give each one's error, None for success."""
        ids = {name: topic.topic_id for name in names if (topic := self._watcher.state.topics.get(name)) is not None}
        try:
            results = await self._controller.delete_topics(names)
        except KafkaError as error:
            return dict.fromkeys(names, error)
        except RegistryError as error:
            return dict.fromkeys(names, RequestTimedOut(f"the registry failed: {error}"))

        def gone() -> bool:
            topics, unreadable = self._watcher.state.topics, self._watcher.state.unreadable_topics
            return unreadable.isdisjoint(name for name, error in results.items() if error is None) and all(
                name not in topics or topics[name].topic_id != topic_id
                for name, topic_id in ids.items()
                if results[name] is None
            )

        if not await self._replicas.wait_until(gone, timeout_s):
            late = RequestTimedOut(f"the deletion is not complete after {timeout_s} s; it goes on")
            return {name: late if error is None else error for name, error in results.items()}
        return results

    @property
    def is_controller(self) -> bool:
        """Whether topics can be changed here."""
        return self._controller.is_active

    def check_controller(self) -> None:
        """Raise NotController (41) unless topics can be changed here."""
        if not self.is_controller:
            raise NotController(f"broker {self._config.broker_id} is not the controller")


def _partition_count(topic: NewTopic) -> int:
    return topic.partition_count if topic.assignment is None else len(topic.assignment)
