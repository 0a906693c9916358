"""DescribeConfigs (key 32), versions 1 to 4: the settings of topics and of this broker, and where each comes from.

v1  sources and synonyms
v3  types and documentation
v4  flexible

A broker's settings must be asked of that broker. All of them are read-only here: they come from the file and the
command line.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafkalite.broker.config import BROKER_SETTINGS
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.errors import InvalidRequest, InvalidTopic, KafkaError, UnknownTopicOrPartition
from spark_kafkalite.log import config as log_config
from spark_kafkalite.log.config import SOURCE_DEFAULT, SOURCE_STATIC_BROKER
from spark_kafkalite.model import topic_name_problem
from spark_kafkalite.settings import Setting
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
# Numbers of org.apache.kafka.clients.admin.ConfigEntry.ConfigType.
_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7, "password": 9}


@handles(32, 1, 4)
def handle(context: BrokerContext, request: Request, message: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe the settings of each resource."""
    results = []
    for resource in message.resources:
        result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            entries = _entries(context, resource)
            wanted = resource.configuration_keys
            result.configs = [entry for entry in entries if wanted is None or entry.name in wanted]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
        for entry in result.configs:
            if not message.include_synonyms:
                entry.synonyms = []
            if not message.include_documentation:
                entry.documentation = None
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _entries(context: BrokerContext, resource: DescribeConfigsResource) -> Iterable[DescribeConfigsResourceResult]:
    name = resource.resource_name
    if resource.resource_type == _TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise InvalidTopic(problem)
        topic = context.cluster.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name} does not exist")
        return [_topic_entry(one) for one in log_config.describe(topic.config, context.config.log_properties)]
    if resource.resource_type == _BROKER:
        if name == "":
            return []  # The cluster-wide dynamic defaults: there are none.
        if name != str(context.config.broker_id):
            raise InvalidRequest(
                f"broker {context.config.broker_id} was asked for the settings of broker {name!r}; ask that one"
            )
        return [_broker_entry(context, setting) for setting in BROKER_SETTINGS]
    raise InvalidRequest(
        f"resource type {resource.resource_type} has no settings here; topics (2) and brokers (4) have"
    )


def _topic_entry(described: log_config.DescribedSetting) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=described.setting.name,
        value=described.value,
        config_source=described.source,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in described.synonyms
        ],
        config_type=_TYPES[described.setting.kind],
        documentation=described.setting.doc,
    )


def _broker_entry(context: BrokerContext, setting: Setting) -> DescribeConfigsResourceResult:
    sensitive = setting.kind == "password"
    given = setting.name in context.config.explicit
    value = None if sensitive else setting.text(context.config[setting.name])
    default = None if sensitive else setting.text(setting.default)
    synonyms = [DescribeConfigsSynonym(name=setting.name, value=default, source=SOURCE_DEFAULT)]
    if given:
        synonyms.insert(0, DescribeConfigsSynonym(name=setting.name, value=value, source=SOURCE_STATIC_BROKER))
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=value,
        read_only=True,
        config_source=SOURCE_STATIC_BROKER if given else SOURCE_DEFAULT,
        is_sensitive=sensitive,
        synonyms=synonyms,
        config_type=_TYPES[setting.kind],
        documentation=setting.doc,
    )
