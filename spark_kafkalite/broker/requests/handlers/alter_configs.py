"""AlterConfigs (key 33), versions 0 to 2: replaces all settings of a resource; others return to their defaults.

v0  plain
v2  flexible

Superseded by IncrementalAlterConfigs, but still in use: the settings of a topic (2), of this broker, or of all brokers
by default (4, empty name). Each resource has its own outcome. ``validate_only`` checks without changing.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.config_resources import resource_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.settings.config_changes import ConfigOperation, OpType, alter_each
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handles(ApiKey.ALTER_CONFIGS, 0, 2)
async def handle(context: BrokerContext, exchange: Exchange, message: AlterConfigsRequest) -> AlterConfigsResponse:
    """Alter the resources one after the other."""
    responses = await alter_each(
        context.config_changes,
        context.slices,
        message.resources,
        lambda each: ConfigOperation(each.name, OpType.SET, each.value),
        AlterConfigsResourceResponse,
        lambda text: log_change(exchange, "%s", text),
        lambda kind, name: exchange.require(Operation.ALTER_CONFIGS, *resource_of(kind, name)),
        replace=True,
        validate_only=message.validate_only,
    )
    return AlterConfigsResponse(responses=responses)
