"""Alters the settings of topics and brokers, for AlterConfigs and IncrementalAlterConfigs.

As in Kafka, any broker alters the settings of topics and the defaults of all brokers, and only a broker itself alters
its own settings. A broker writes the registry's node only at the version that it has read
(``registry/config_nodes.py``), so concurrent alterations do not overwrite each other. A broker answers an alteration
after it has applied the new settings. A broker also alters the levels of its own loggers, which are not stored
(``logger_levels``).

The errors are Kafka's, and their texts begin with Kafka's words:

- UNKNOWN_TOPIC_OR_PARTITION (3) and INVALID_TOPIC_EXCEPTION (17) for the topic.
- INVALID_CONFIG (40) for a topic's unknown setting or invalid value, and for APPEND or SUBTRACT of a setting that is
  not a list.
- INVALID_REQUEST (42) for all other errors: duplicates, missing values, another broker's settings, and a broker's
  setting that is unknown, read-only or invalid.

Source: kafka.server.ConfigAdminManager and org.apache.kafka.controller.ConfigurationControlManager of Apache Kafka 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.settings import logger_levels
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.settings.topic_overrides import TopicSettings
from spark_kafkalite.errors import (
    ConfigError,
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    RegistryError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_kafkalite.log.topic_config import TOPIC_SETTINGS
from spark_kafkalite.model import topic_name_problem, whole_number
from spark_kafkalite.printable import first_of
from spark_kafkalite.redaction import shown_name, shown_value
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.registry.config_nodes import alter_config
from spark_kafkalite.registry.store import BadArguments, NoNode, OutOfRoom
from spark_kafkalite.settings import Setting, SettingGroup
from spark_kafkalite.slices import Slices, counted, freed
from spark_kafkalite.wire.primitives import MAX_STRING_BYTES

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
LOGGER_RESOURCE: Final = 8
# Kafka's text for an empty name, and what this broker does not store.
_WITHOUT_SETTINGS: Final = {
    16: ("Subscription name can't be empty", "Client metrics subscriptions"),
    32: ("Default group resources are not allowed.", "Settings of groups"),
}

# How long an alteration waits until this broker applies it. After that time it is written all the same.
_OBEYED_WITHIN_S: Final = 10.0


class OpType(IntEnum):
    """An operation on a setting. The numbers are those of Kafka's AlterConfigOp."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# Many more than the number of all settings.
_MOST_OPERATIONS = 1000
_MOST_SHOWN: Final = 20


class ConfigOperation(NamedTuple):
    """One operation on one setting. ``operation`` may be an unknown number, which is refused."""

    name: str
    operation: int
    value: str | None


class ConfigChanges:
    """Alters settings in the registry and waits until this broker applies them."""

    def __init__(
        self,
        config: DynamicConfig,
        topic_settings: TopicSettings,
        membership: ClusterMembership,
        view: ClusterView,
        replicas: Replicas,
    ) -> None:
        self._config = config
        self._topic_settings = topic_settings
        self._membership = membership
        self._view = view
        self._replicas = replicas

    async def alter(
        self,
        resource_type: int,
        resource_name: str,
        operations: Sequence[ConfigOperation],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Do the operations on the settings of one resource. With ``replace`` all other settings are reset.

        Raises the errors in the module's docstring, and RequestTimedOut (7) if the registry fails.
        """
        _check_form(operations)
        if resource_type == TOPIC_RESOURCE:
            path, owner, defaults = self._topic(resource_name)
            group = TOPIC_SETTINGS
        elif resource_type == LOGGER_RESOURCE and not replace:
            self._alter_levels(resource_name, operations, validate_only=validate_only)
            return
        elif resource_type == BROKER_RESOURCE:
            entity = self._broker_entity(resource_name)
            path, owner, defaults = znodes.broker_config_path(entity), None, self._config.values_of(entity)
            group = BROKER_SETTINGS
        elif resource_type in _WITHOUT_SETTINGS:
            empty, what = _WITHOUT_SETTINGS[resource_type]
            raise InvalidRequest(f"{what} are not kept by this broker" if resource_name else empty)
        else:
            raise InvalidRequest(
                f"Unknown resource type {resource_type}; settings of topics (2) and brokers (4) can be altered, and "
                "levels of a broker's loggers (8) with IncrementalAlterConfigs"
            )

        def change(old: Mapping[str, str]) -> Mapping[str, str]:
            new = {} if replace else dict(old)
            for operation in operations:
                _apply(operation, new, group, defaults)
            if group is TOPIC_SETTINGS:
                self._topic_settings.check(new)
            else:
                self._check_broker(new, [operation.name for operation in operations], entity)
            return new

        try:
            store = self._membership.session.store
            await alter_config(store, path, change, owner=owner, validate_only=validate_only)
        except BadArguments as error:
            raise InvalidRequest(f"the settings cannot be stored: {error}") from error
        except NoNode as error:
            raise UnknownTopicOrPartition(f"The topic '{resource_name}' does not exist.") from error
        except OutOfRoom as error:
            raise KafkaStorageError(f"nothing has been changed: {error}") from error
        except RegistryError as error:
            raise RequestTimedOut(f"the registry failed ({error}); the change may or may not have been made") from error
        if not validate_only:
            await self._wait_until_obeyed()

    def _topic(self, name: str) -> tuple[str, str, Mapping[str, object]]:
        if name == "":
            raise InvalidRequest(
                "Default topic resources are not allowed. The defaults of all topics are settings of brokers."
            )
        problem = topic_name_problem(name)
        if problem is not None:
            raise InvalidTopic(problem)
        if name not in self._view.state.topics:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        return znodes.topic_config_path(name), znodes.topic_path(name), self._config.current.topic_defaults

    def _broker_entity(self, name: str) -> str:
        if name == "":
            return znodes.DEFAULT_ENTITY
        own = self._config.current.broker_id
        if _node_id(name) != own:
            raise InvalidRequest(f"Unexpected broker id, expected {own}, but received {name}; ask that broker")
        return str(own)

    def _alter_levels(self, name: str, operations: Sequence[ConfigOperation], *, validate_only: bool) -> None:
        own = self._config.current.broker_id
        if _node_id(name) != own:
            raise InvalidRequest(f"Unexpected node id. Expected {own}, but received {name}; ask that broker")
        for each in operations:
            if each.operation not in (OpType.SET, OpType.DELETE):
                doing = OpType(each.operation).name
                raise InvalidRequest(f"{doing} operation is not allowed for the BROKER_LOGGER resource")
        changes = {each.name: each.value if each.operation == OpType.SET else None for each in operations}
        logger_levels.check(changes)
        if not validate_only:
            logger_levels.change(changes)

    def _check_broker(self, new: Mapping[str, str], changed: Sequence[str], entity: str) -> None:
        try:
            self._config.check(changed, new, entity)
        except ConfigError as error:
            raise InvalidRequest(error.kafka_text) from error

    async def _wait_until_obeyed(self) -> None:
        try:
            await self._membership.session.watcher.caught_up(_OBEYED_WITHIN_S)
        except (RegistryError, TimeoutError) as error:
            raise RequestTimedOut(f"the change has been written, but is not seen here yet ({error})") from error
        await self._replicas.wait_until(lambda: self._replicas.is_idle, _OBEYED_WITHIN_S)


Change = TypeVar("Change")
Answer = TypeVar("Answer")


class AlteredResource(Protocol[Change]):
    """A resource in a request of either API."""

    resource_type: int
    resource_name: str
    configs: list[Change]


async def alter_each(
    changes: ConfigChanges,
    slices: Slices,
    resources: Sequence[AlteredResource[Change]],
    operation_of: Callable[[Change], ConfigOperation],
    answer_class: Callable[..., Answer],
    log_change: Callable[[str], None],
    require: Callable[[int, str], None],
    *,
    replace: bool,
    validate_only: bool,
) -> list[Answer]:
    """Alter the resources one after the other; return one answer for each, of the API's own class.

    ``log_change`` receives a text about each change for the log. ``require`` receives type and name of each resource,
    and raises KafkaError unless the client may alter it.
    """
    counts = await slices.run(counted((each.resource_type, each.resource_name) for each in resources))
    turn = slices.turn()
    outcomes: dict[tuple[int, str], Answer] = {}
    for resource in resources:
        name = resource.resource_type, resource.resource_name
        if name in outcomes:
            continue
        await turn.pause()
        code, message = 0, None
        try:
            require(*name)
            if counts[name] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            if len(resource.configs) > _MOST_OPERATIONS:
                raise InvalidRequest(
                    f"{len(resource.configs)} settings of one resource are named; at most {_MOST_OPERATIONS} can be, "
                    "and there are not so many"
                )
            operations = list(map(operation_of, resource.configs))
            await changes.alter(*name, operations, replace=replace, validate_only=validate_only)
            if not validate_only:
                log_change(_change_text(*name, operations, replace=replace))
        except KafkaError as error:
            code, message = error.code, str(error)
        outcomes[name] = answer_class(
            resource_type=name[0], resource_name=name[1], error_code=code, error_message=message
        )
    answers = list(outcomes.values())
    await slices.run(freed(outcomes))
    await slices.run(freed(counts))
    return answers


def _change_text(resource_type: int, name: str, operations: Sequence[ConfigOperation], *, replace: bool) -> str:
    """Return a text about an alteration, without secret values."""
    what = {TOPIC_RESOURCE: "settings of topic", LOGGER_RESOURCE: "levels of loggers of broker"}.get(
        resource_type, "settings of broker" if name else "settings of all brokers"
    )
    done = first_of([_operation_text(each) for each in operations], _MOST_SHOWN)
    return f"{what} {name}".rstrip() + f" have been {'replaced' if replace else 'altered'}: {done or 'none left'}"


def _operation_text(operation: ConfigOperation) -> str:
    name = shown_name(operation.name)
    if operation.operation == OpType.DELETE:
        return f"{name} has its default again"
    sign = {OpType.APPEND: "+=", OpType.SUBTRACT: "-="}.get(OpType(operation.operation), "=")
    return f"{name}{sign}{shown_value(operation.name, operation.value)}"


def _check_form(operations: Sequence[ConfigOperation]) -> None:
    """Raise InvalidRequest for operations that are wrong for any setting."""
    twice = [name for name, count in Counter(each.name for each in operations).items() if count > 1]
    if twice:
        raise InvalidRequest(f"Error due to duplicate config keys: {', '.join(twice)}")
    empty = [each.name for each in operations if each.value is None and each.operation != OpType.DELETE]
    if empty:
        raise InvalidRequest(f"Null value not supported for : {', '.join(empty)}")
    unknown = sorted({each.operation for each in operations} - {int(known) for known in OpType})
    if unknown:
        raise InvalidRequest(f"Unknown operations type {unknown[0]}; SET is 0, DELETE 1, APPEND 2, SUBTRACT 3")


def _node_id(name: str) -> int:
    number = whole_number(name)
    if number is None:
        raise InvalidRequest(f"Node id must be an integer, but it is: {name}")
    return number


def _apply(
    operation: ConfigOperation, settings: dict[str, str], group: SettingGroup, defaults: Mapping[str, object]
) -> None:
    name, value = operation.name, operation.value or ""
    if operation.operation == OpType.SET:
        settings[name] = value
        return
    if operation.operation == OpType.DELETE:
        settings.pop(name, None)
        return
    if name not in group or group[name].kind != "list":
        doing = OpType(operation.operation).name
        if group is BROKER_SETTINGS:
            raise InvalidConfig(f"Config value {doing.lower()} is not allowed for config key: {name}; it is not a list")
        raise InvalidConfig(f"Can't {doing} to key {name} because its type is not LIST.")
    setting = group[name]
    present = _items(setting, settings[name] if name in settings else defaults[name])
    given = _items(setting, value)
    if operation.operation == OpType.APPEND:
        present += [item for item in dict.fromkeys(given) if item not in present]
    else:
        present = [item for item in present if item not in given]
    settings[name] = ",".join(present)
    if len(settings[name].encode()) > MAX_STRING_BYTES:
        # A DescribeConfigs answer cannot contain a longer value.
        raise InvalidConfig(f"{name} would have more than {MAX_STRING_BYTES} bytes, the most that a value may have")


def _items(setting: Setting, value: object) -> list[str]:
    """Return the items of a list, without a check of their values, which follows later."""
    text = value if isinstance(value, str) else setting.text(value) or ""
    return [item for part in text.split(",") if (item := part.strip())]
