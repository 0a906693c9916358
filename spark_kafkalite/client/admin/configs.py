"""Administration of settings: of topics, of one broker, and of all brokers by default.

Every call is about one of the three, named by ``topic``, ``broker_id`` or ``all_brokers``, but for two that are about
many topics. A broker's own settings are
asked of, and altered at, that broker; with ``loggers`` it is the levels of that broker's loggers that are meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.network.metadata import not_live
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import BrokerNotAvailable, ConfigError
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages import alter_configs, incremental_alter_configs
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from spark_kafkalite.wire.rights import refusal

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
LOGGER_RESOURCE: Final = 8
_SOURCES: Final = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default broker",
    4: "static broker",
    5: "default",
    6: "dynamic broker logger",
    8: "group",
}
_TYPES: Final = {
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}
_OPERATIONS: Final = {"set": 0, "delete": 1, "append": 2, "subtract": 3}

# Topics whose settings are asked for in one request.
_TOPICS_AT_ONCE: Final = 500
# Topics that are changed in one request: each is a write to the registry, and the answer comes after the last one.
_CHANGED_AT_ONCE: Final = 100

AlterOperation = Literal["set", "delete", "append", "subtract"]


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place that a setting's value may come from."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or broker. ``source`` is where the value comes from; ``value`` is None when secret.

    ``synonyms`` are all places that it may come from, the first in force; empty unless they were asked for. ``kind`` is
    the type, None when the broker does not return it.
    """

    name: str
    value: str | None
    source: str
    read_only: bool
    is_sensitive: bool
    documentation: str | None = None
    kind: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of a setting: "set" it, "delete" what was set, "append" to a list or "subtract" from it."""

    name: str
    operation: AlterOperation
    value: str | None = None


@dataclass(frozen=True, slots=True)
class _Resource:
    """Whose settings; ``broker_id`` is the broker that must be asked, None for any."""

    kind: int
    name: str
    broker_id: int | None

    @classmethod
    def of(cls, topic: str | None, broker_id: int | None, all_brokers: bool, loggers: bool = False) -> _Resource:
        if (topic is not None) + (broker_id is not None) + all_brokers != 1:
            raise ConfigError("settings of what? Give either topic or broker_id or all_brokers")
        if loggers:
            if broker_id is None:
                raise ConfigError("loggers of what? Give a broker_id")
            return cls(LOGGER_RESOURCE, str(broker_id), broker_id)
        if topic is not None:
            return cls(TOPIC_RESOURCE, topic, None)
        return cls(BROKER_RESOURCE, "" if broker_id is None else str(broker_id), broker_id)

    def __str__(self) -> str:
        if self.kind == TOPIC_RESOURCE:
            return f"topic {self.name}"
        if self.kind == LOGGER_RESOURCE:
            return f"loggers of broker {self.name}"
        return f"broker {self.name}" if self.name else "all brokers"


class ConfigAdmin(AdminRequests):
    """The calls of an administrator that have to do with settings."""

    def describe_configs(
        self,
        *,
        topic: str | None = None,
        broker_id: int | None = None,
        all_brokers: bool = False,
        loggers: bool = False,
        include_synonyms: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, ConfigEntry]:
        """Return all settings of a topic or a broker under their names; of all brokers those that were set so.
        ``loggers``: the levels of all loggers of the broker instead.

        Raises UnknownTopicOrPartition (3), InvalidTopic (17).
        """
        resource = _Resource.of(topic, broker_id, all_brokers, loggers)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.kind, resource_name=resource.name, configuration_keys=None
                )
            ],
            include_synonyms=include_synonyms,
            include_documentation=True,
        )

        def ask(deadline: Deadline) -> dict[str, ConfigEntry]:
            result = self._ask_about(resource.broker_id, ApiKey.DESCRIBE_CONFIGS, request, deadline).results[0]
            if result.error_code:
                raise refusal(
                    ApiKey.DESCRIBE_CONFIGS,
                    result.error_code,
                    result.error_message or f"settings of {resource} cannot be described",
                )
            return {each.name: _config_entry(each) for each in result.configs}

        deadline = self._deadline(timeout_ms)
        return self._retried(partial(ask, deadline), deadline)  # type: ignore[no-any-return]

    def describe_topic_settings(
        self, topics: Iterable[str], names: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, ConfigEntry]]:
        """Return the settings of these names of many topics; topics that are gone meanwhile are left out."""
        deadline = self._deadline(timeout_ms)
        wanted, keys = list(topics), list(names)
        found: dict[str, dict[str, ConfigEntry]] = {}
        for first in range(0, len(wanted), _TOPICS_AT_ONCE):
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=keys)
                    for name in wanted[first : first + _TOPICS_AT_ONCE]
                ]
            )
            ask = partial(self._cluster.request_any, ApiKey.DESCRIBE_CONFIGS, request, deadline)
            answer: Any = self._retried(ask, deadline)
            for result in answer.results:
                if not result.error_code:
                    found[result.resource_name] = {each.name: _config_entry(each) for each in result.configs}
        return found

    def incremental_alter_configs(
        self,
        changes: Iterable[ConfigChange],
        *,
        topic: str | None = None,
        broker_id: int | None = None,
        all_brokers: bool = False,
        loggers: bool = False,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change single settings, all or none; with ``validate_only`` only check the changes. ``loggers``: levels of
        the broker's loggers, until it ends.

        Raises UnknownTopicOrPartition (3), InvalidConfig (40) for a topic's unknown setting or bad value,
        InvalidRequest (42) for a broker's, also for one that cannot change while it runs, and for changing one twice.
        """
        resource = _Resource.of(topic, broker_id, all_brokers, loggers)
        self._alter_each(resource.broker_id, {resource: tuple(changes)}, validate_only, timeout_ms)

    def alter_topic_settings(
        self, changes: Mapping[str, Iterable[ConfigChange]], *, timeout_ms: int | None = None
    ) -> None:
        """Change single settings of many topics, of each all or none; a hundred topics share a request.

        Raises what :meth:`incremental_alter_configs` raises, for the first topic that is refused. Then others may have
        been changed.
        """
        wanted = [(_Resource.of(topic, None, False), tuple(of_topic)) for topic, of_topic in changes.items()]
        for first in range(0, len(wanted), _CHANGED_AT_ONCE):
            self._alter_each(None, dict(wanted[first : first + _CHANGED_AT_ONCE]), False, timeout_ms)

    def alter_configs(
        self,
        configs: Mapping[str, str],
        *,
        topic: str | None = None,
        broker_id: int | None = None,
        all_brokers: bool = False,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Replace all settings: what ``configs`` does not name goes back to its default.

        :meth:`incremental_alter_configs` changes single ones. Raises the same errors.
        """
        resource = _Resource.of(topic, broker_id, all_brokers)
        message = alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configs=[alter_configs.AlterableConfig(name=name, value=value) for name, value in configs.items()],
                )
            ],
            validate_only=validate_only,
        )
        self._alter(resource.broker_id, ApiKey.ALTER_CONFIGS, message, timeout_ms)

    def _alter_each(
        self,
        broker_id: int | None,
        changes: Mapping[_Resource, Sequence[ConfigChange]],
        validate_only: bool,
        timeout_ms: int | None,
    ) -> None:
        message = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configs=[
                        incremental_alter_configs.AlterableConfig(
                            name=each.name,
                            config_operation=_operation_number(each),
                            value=None if each.operation == "delete" else each.value,
                        )
                        for each in of_resource
                    ],
                )
                for resource, of_resource in changes.items()
            ],
            validate_only=validate_only,
        )
        self._alter(broker_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, message, timeout_ms)

    def _alter(self, broker_id: int | None, api_key: int, message: Any, timeout_ms: int | None) -> None:
        def ask(deadline: Deadline) -> None:
            for result in self._ask_about(broker_id, api_key, message, deadline).responses:
                if result.error_code:
                    resource = _Resource(result.resource_type, result.resource_name, broker_id)
                    raise refusal(
                        api_key,
                        result.error_code,
                        f"cannot alter the settings of {resource}: {result.error_message or 'refused'}",
                    )

        deadline = self._deadline(timeout_ms)
        self._retried(partial(ask, deadline), deadline)

    def _ask_about(self, broker_id: int | None, api_key: int, message: Any, deadline: Deadline) -> Any:
        if broker_id is None:
            return self._cluster.request_any(api_key, message, deadline)
        snapshot = self._cluster.refresh([], deadline)
        if broker_id not in snapshot.nodes:
            # Final, unlike a broker that does not answer: its number may as well be a slip.
            raise BrokerNotAvailable(not_live(broker_id, snapshot))
        return self._cluster.request_to(broker_id, api_key, message, deadline)


def _operation_number(change: ConfigChange) -> int:
    number = _OPERATIONS.get(change.operation)
    if number is None:
        raise ConfigError(f"{change.name}: the operation {change.operation!r} is none of {', '.join(_OPERATIONS)}")
    return number


def _config_entry(received: Any) -> ConfigEntry:
    return ConfigEntry(
        received.name,
        received.value,
        _source(received.config_source),
        received.read_only,
        received.is_sensitive,
        received.documentation,
        _TYPES.get(received.config_type),
        tuple(ConfigSynonym(each.name, each.value, _source(each.source)) for each in received.synonyms),
    )


def _source(number: int) -> str:
    return _SOURCES.get(number, f"source {number}")
