"""The leaders of the partitions that an answer refuses: clients go there without asking for metadata (KIP-951)."""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.packed import NodeEndpoint

_FIRST_VERSIONS: dict[int, int] = {ApiKey.PRODUCE: 10, ApiKey.FETCH: 16}


class LeaderHints:
    """The leaders that one answer names; ``endpoints`` is where those that live are reached by its client."""

    __slots__ = ("_context", "_exchange", "endpoints")

    def __init__(self, context: BrokerContext, exchange: Exchange) -> None:
        self._context = context
        self._exchange = exchange
        self.endpoints: tuple[NodeEndpoint, ...] = ()

    def of(self, topic_partition: TopicPartition, error: KafkaError) -> tuple[int, int] | None:
        """Return the leader and its epoch, as the registry has them, of a partition that is refused with ``error``.

        None where there is no leader, or the registry names this broker, which does not lead; or where the error is
        another than NotLeaderOrFollower (6) and FencedLeaderEpoch (74), or the request's version knows no hints.
        """
        if not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
            return None
        exchange, context = self._exchange, self._context
        if exchange.api_version < _FIRST_VERSIONS[exchange.api_key]:
            return None
        state = context.cluster.partition(topic_partition)
        if state is None or state.leader < 0:
            return None
        if state.leader == context.config["broker.id"] and isinstance(error, NotLeaderOrFollower):
            # It leads no more, or not yet.
            return None
        broker = context.cluster.brokers.get(state.leader)
        if broker is not None and all(endpoint.node_id != state.leader for endpoint in self.endpoints):
            address = context.address_of(broker, exchange.session)
            if address is not None:
                self.endpoints += (NodeEndpoint(state.leader, *address, broker.rack),)
        return state.leader, state.leader_epoch
