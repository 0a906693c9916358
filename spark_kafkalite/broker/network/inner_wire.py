"""What brokers need to talk to each other: the listener that is for that, and the cluster secret.

A broker that is a cluster by itself has neither: no client can authenticate to it as a broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.peer import PeerIdentity
from spark_kafkalite.broker.network.wire_versions import WireVersions
from spark_kafkalite.errors import BrokerNotAvailable, InnerWireUnsupported
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState
from spark_kafkalite.security.cluster_secret import ClusterSecret


class InnerWire:
    """See the module's text."""

    def __init__(self, broker_id: int, listener_name: str, *, is_for_brokers_alone: bool) -> None:
        """``is_for_brokers_alone``: clients have other listeners than ``listener_name``."""
        self.listener_name = listener_name
        self.is_for_brokers_alone = is_for_brokers_alone
        self._broker_id = broker_id
        self.versions = WireVersions(broker_id)
        # None until it is known, and in a broker that is a cluster by itself.
        self._secret: ClusterSecret | None = None
        self._on_change: list[Callable[[ClusterSecret], None]] = []

    @property
    def secret(self) -> ClusterSecret | None:
        """The secret in force."""
        return self._secret

    def set_secret(self, secret: ClusterSecret) -> None:
        """Use and accept this secret from now on; connections that proved another one are closed."""
        self._secret = secret
        for tell in self._on_change:
            tell(secret)

    def on_change(self, tell: Callable[[ClusterSecret], None]) -> None:
        """Have ``tell`` called with each new secret."""
        self._on_change.append(tell)

    @property
    def identity(self) -> PeerIdentity:
        """This broker's identity to others. Raises BrokerNotAvailable (8) when it has no secret."""
        if self._secret is None:
            raise BrokerNotAvailable("this broker has no cluster secret, and so no way to talk to another broker")
        return PeerIdentity(self._broker_id, self._secret, self.versions)

    def cluster_changed(self, _: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        """Log which brokers have come that this one does not speak to, also if it has no need to connect to them."""
        for broker_id in (*change.new_brokers, *change.bounced_brokers):
            if broker_id != self._broker_id:
                with contextlib.suppress(InnerWireUnsupported):
                    self.versions.check(broker_id, new.brokers[broker_id].inner_wire_version)

    def serves_brokers(self, listener: Listener) -> bool:
        """Whether brokers may authenticate on a listener."""
        return self._secret is not None and listener.name == self.listener_name

    def serves_brokers_alone(self, listener: Listener) -> bool:
        """Whether a listener serves authenticated brokers only."""
        return self.is_for_brokers_alone and listener.name == self.listener_name
