"""InitProducerId (key 22), versions 0 to 4: a producer id for an idempotent producer, unique in the cluster for ever.

Any broker answers. A transactional id is refused: this broker has no transaction coordinator.

v0-1  plain
v2    flexible
v3    a producer may name the id and epoch that it has, to get a higher epoch (KIP-360)
v4    may answer PRODUCER_FENCED

Without a transactional id there is no state to bump an epoch in; a new id serves the same purpose, because sequences of
a new id start again at 0 everywhere. Java clients do the same for themselves.
"""

from __future__ import annotations

import logging

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    InvalidRequest,
    RegistryError,
    TransactionalIdAuthorizationFailed,
)
from spark_kafkalite.model import NO_PRODUCER_ID
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NO_EPOCH = -1
_quiet = QuietLog(logging.getLogger(__name__))


@handles(ApiKey.INIT_PRODUCER_ID, 0, 4)
async def handle(context: BrokerContext, exchange: Exchange, message: InitProducerIdRequest) -> InitProducerIdResponse:
    """Give a new producer id."""
    if message.transactional_id is not None:
        if not exchange.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, message.transactional_id):
            return _refused(TransactionalIdAuthorizationFailed.code)
        # The API has no field for a text. An empty id is malformed; any other is not allowed here, and of the errors
        # that clients know for this API only "not authorized" ends the producer at once with the id named.
        error = TransactionalIdAuthorizationFailed if message.transactional_id else InvalidRequest
        return _refused(error.code)
    if not (
        exchange.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, is_probe=True)
        or exchange.may(Operation.WRITE, ResourceType.TOPIC, None)
    ):
        return _refused(ClusterAuthorizationFailed.code)
    if (message.producer_id == NO_PRODUCER_ID) != (message.producer_epoch == _NO_EPOCH):
        # One without the other says nothing. Source: kafka.server.KafkaApis.handleInitProducerIdRequest.
        return _refused(InvalidRequest.code)
    try:
        producer_id = await context.producer_ids.next_id()
    except RegistryError as error:
        # The API has no field for a text, and the producer asks again until it gives up.
        _quiet.log(logging.ERROR, "block", "no producer id can be given out: %s", error)
        return _refused(CoordinatorNotAvailable.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
