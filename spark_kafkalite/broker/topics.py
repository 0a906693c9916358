"""Creating, extending and deleting topics: what the handlers share on top of the controller.

The controller writes the registry; clients want more than that: an answer only when the leaders are in place, settings
checked, the broker's defaults for what a request leaves open. Everything here is asynchronous and rare.

This broker acts only while it is the controller; otherwise NotController (41) tells clients to ask the one that is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_kafkalite.broker.config import BrokerConfig
from spark_kafkalite.broker.dynamic_config import DynamicConfig
from spark_kafkalite.broker.replicas import Replicas
from spark_kafkalite.errors import (
    ConfigError,
    InvalidConfig,
    KafkaError,
    NotController,
    PolicyViolation,
    RegistryError,
    RequestTimedOut,
)
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.registry.controller import Controller, NewTopic
from spark_kafkalite.registry.watcher import ClusterWatcher
from spark_kafkalite.registry.znodes import TopicAssignment

logger = logging.getLogger(__name__)

# How long a metadata request waits for the topic that it caused; afterwards the client asks again anyway.
_AUTO_CREATE_WAIT_S = 2.0


class Topics:
    """See the module's text."""

    def __init__(
        self, config: DynamicConfig, controller: Controller, watcher: ClusterWatcher, replicas: Replicas
    ) -> None:
        self._dynamic_config = config
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
            raise InvalidConfig(error.kafka_text) from error

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
        created: KafkaStorageError (56).
        """
        results: dict[str, TopicAssignment | KafkaError] = {}
        accepted = []
        for topic in topics:
            try:
                self._check_size(topic)
                self._replicas.check_room()
                self.check_config(topic.config)
                accepted.append(topic)
            except KafkaError as error:
                results[topic.name] = error
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

    def _check_size(self, topic: NewTopic) -> None:
        limit = self._config["max.partitions.per.request"]
        count = topic.partition_count if topic.assignment is None else len(topic.assignment)
        if count > limit:
            raise PolicyViolation(
                f"Excessively large number of partitions per request. Topic {topic.name}: {count} partitions are more "
                f"than max.partitions.per.request={limit}"
            )

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
        """Create topics that a metadata request asked for; whatever fails shows in the metadata that follows."""
        if not self._config["auto.create.topics.enable"]:
            return
        wanted = [
            NewTopic(name, self._config["num.partitions"], self._config["default.replication.factor"])
            for name in dict.fromkeys(names)
            if name not in INTERNAL_TOPICS
        ]
        if wanted:
            await self.create(wanted, timeout_s=_AUTO_CREATE_WAIT_S)

    async def add_partitions(
        self,
        name: str,
        total: int,
        assignment: Sequence[Sequence[int]] | None,
        *,
        timeout_s: float,
        validate_only: bool = False,
    ) -> None:
        """Extend a topic and wait until the new leaders serve. Raises the controller's errors, PolicyViolation (44)."""
        topic = self._watcher.state.topics.get(name)
        limit = self._config["max.partitions.per.request"]
        if topic is not None and total - len(topic.partitions) > limit:
            raise PolicyViolation(
                f"Excessively large number of partitions per request. Topic {name}: {total - len(topic.partitions)} "
                f"more partitions are above max.partitions.per.request={limit}"
            )
        self._replicas.check_room()
        try:
            extended = await self._controller.create_partitions(name, total, assignment, validate_only=validate_only)
        except RegistryError as error:
            raise RequestTimedOut(f"the registry failed: {error}") from error
        if validate_only:
            return
        if await self._not_served({name: extended}, timeout_s):
            raise RequestTimedOut(f"topic {name} has been extended, but a partition has no leader after {timeout_s} s")

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
