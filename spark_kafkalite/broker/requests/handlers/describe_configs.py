"""DescribeConfigs (key 32), versions 1 to 4: the settings of topics and of this broker, and where each comes from.

v1  sources and synonyms
v3  types and documentation
v4  flexible

A broker's settings must be asked of that broker; those that it does not take while it runs are read-only. A broker of
empty name stands for all of them: it has the settings that were set so by default, and no others. The loggers of a
broker have their levels. Client metrics and groups are known resources without settings here: any name is answered with
none, so that tools that ask for them go on.

Errors begin with Kafka's words. Source: kafka.server.ConfigHelper of Apache Kafka 4.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafkalite.acls import Operation
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.config_resources import resource_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.settings import logger_levels
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.errors import InvalidRequest, InvalidTopic, KafkaError, UnknownTopicOrPartition
from spark_kafkalite.log.config_sources import (
    SOURCE_BROKER_LOGGER,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    DescribedSetting,
    describe_broker,
    describe_topic,
)
from spark_kafkalite.model import topic_name_problem, whole_number
from spark_kafkalite.slices import Work, filled, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_TOPIC = 2
_BROKER = 4
_BROKER_LOGGER = 8
# What has no settings here, and what Kafka calls a name of it.
_WITHOUT_SETTINGS = {16: "Client metrics subscription name", 32: "Group name"}
# Numbers of org.apache.kafka.clients.admin.ConfigEntry.ConfigType.
_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7, "password": 9}


@handles(ApiKey.DESCRIBE_CONFIGS, 1, 4)
def handle(
    context: BrokerContext, exchange: Exchange, message: DescribeConfigsRequest
) -> Work[DescribeConfigsResponse]:
    """Describe the settings of each resource."""
    results = []
    # One that is named twice is described once: a short request must not make a long answer.
    named: set[tuple[int, str]] = set()
    for resource in message.resources:
        yield None
        if (resource.resource_type, resource.resource_name) in named:
            continue
        named.add((resource.resource_type, resource.resource_name))
        result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            exchange.require(Operation.DESCRIBE_CONFIGS, *resource_of(resource.resource_type, resource.resource_name))
            entries = _entries(context, resource)
            wanted = yield from filled(set(), resource.configuration_keys or ())
            result.configs = [entry for entry in entries if not wanted or entry.name in wanted]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
        for entry in result.configs:
            if not message.include_synonyms:
                entry.synonyms = []
            if not message.include_documentation:
                entry.documentation = None
        results.append(result)
    yield from freed(named)
    return DescribeConfigsResponse(results=results)


def _entries(context: BrokerContext, resource: DescribeConfigsResource) -> Iterable[DescribeConfigsResourceResult]:
    name = resource.resource_name
    if resource.resource_type == _TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise InvalidTopic(problem)
        topic = context.cluster.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        config = context.config
        return [
            _entry(one, read_only=False) for one in describe_topic(topic.config, config.layers, config.topic_defaults)
        ]
    if resource.resource_type == _BROKER:
        if name != "":
            _check_broker(context, name, "expected {} or empty string,")
        described = describe_broker(BROKER_SETTINGS, context.config.values, context.config.layers)
        if name == "":
            described = [by_default for one in described if (by_default := _by_default(one)) is not None]
            return [_entry(one, read_only=not one.setting.dynamic) for one in described]
        return [*(_entry(one, read_only=not one.setting.dynamic) for one in described), _protocol_version()]
    if resource.resource_type == _BROKER_LOGGER:
        if name == "":
            raise InvalidRequest("Broker id must not be empty")
        _check_broker(context, name, "expected {}")
        return [
            DescribeConfigsResourceResult(name=logger, value=level, config_source=SOURCE_BROKER_LOGGER)
            for logger, level in logger_levels.levels().items()
        ]
    if resource.resource_type in _WITHOUT_SETTINGS:
        if name == "":
            raise InvalidRequest(f"{_WITHOUT_SETTINGS[resource.resource_type]} must not be empty")
        return []
    raise InvalidRequest(
        f"Unknown resource type {resource.resource_type}; topics (2), brokers (4) and their loggers (8) have settings"
    )


def _protocol_version() -> DescribeConfigsResourceResult:
    """Return the setting by which tools find out what a broker without KRaft can do, as the last Kafka without it had
    it: kafbat hides quotas, and alters settings by an older API, where it finds no version."""
    return DescribeConfigsResourceResult(
        name="inter.broker.protocol.version",
        value="3.9-IV0",
        read_only=True,
        config_source=SOURCE_DEFAULT,
        config_type=_TYPES["string"],
        documentation="For tools that look for the version of Apache Kafka that a broker is like. It has no effect.",
    )


def _check_broker(context: BrokerContext, name: str, expected: str) -> None:
    """Raise InvalidRequest unless ``name`` is this broker's number."""
    own = context.config.broker_id
    number = whole_number(name)
    if number is None:
        raise InvalidRequest(f"Broker id must be an integer, but it is: {name}")
    if number != own:
        raise InvalidRequest(f"Unexpected broker id, {expected.format(own)} but received {name}; ask that broker")


def _by_default(described: DescribedSetting) -> DescribedSetting | None:
    """Return what of a setting was set for all brokers by default, None when nothing was."""
    found = tuple(each for each in described.synonyms if each.source == SOURCE_DYNAMIC_DEFAULT_BROKER)
    return described._replace(value=found[0].value, source=found[0].source, synonyms=found) if found else None


def _entry(described: DescribedSetting, *, read_only: bool) -> DescribeConfigsResourceResult:
    setting = described.setting
    sensitive = setting.kind == "password"
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=None if sensitive else described.value,
        read_only=read_only,
        config_source=described.source,
        is_sensitive=sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=None if sensitive else each.value, source=each.source)
            for each in described.synonyms
        ],
        config_type=_TYPES[setting.kind],
        documentation=setting.doc,
    )
