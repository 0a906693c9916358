"""IncrementalAlterConfigs (key 44), versions 0 to 1: sets, deletes, appends to and subtracts from single settings.

v0  plain
v1  flexible

Each resource (topic 2, broker 4; a broker of empty name is all of them by default) has its own outcome and is changed
as a whole or not at all. ``validate_only`` checks without changing.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.config_resources import resource_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.settings.config_changes import ConfigOperation, alter_each
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1)
async def handle(
    context: BrokerContext, exchange: Exchange, message: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Alter the resources one after the other."""
    responses = await alter_each(
        context.config_changes,
        context.slices,
        message.resources,
        lambda each: ConfigOperation(each.name, each.config_operation, each.value),
        AlterConfigsResourceResponse,
        lambda text: log_change(exchange, "%s", text),
        lambda kind, name: exchange.require(Operation.ALTER_CONFIGS, *resource_of(kind, name)),
        replace=False,
        validate_only=message.validate_only,
    )
    return IncrementalAlterConfigsResponse(responses=responses)
