"""The broker's quotas as one: the table, what enforces it, and the registry's settings that it follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.client_quotas import ClientQuotas
from spark_kafkalite.broker.quotas.connection_rates import ConnectionRates
from spark_kafkalite.broker.quotas.limits import Limits
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs


class Quotas:
    """Follows the settings of users, client ids and addresses.

    While the registry is unavailable the last known ones hold.
    """

    def __init__(self, entities: EntityConfigs, windows: Windows, now_s: Callable[[], float]) -> None:
        """``now_s`` is a monotonic clock, in seconds."""
        self.limits = Limits()
        self.clients = ClientQuotas(now_s, windows, self.limits)
        self.connections = ConnectionRates(now_s, windows, self.limits)
        for path in entities.entities():
            self._changed(path, entities.config(path))
        entities.add_listener(self._changed)

    def _changed(self, path: str, config: Mapping[str, str]) -> None:
        if self.limits.take(path, config):
            self.clients.limits_changed()
            self.connections.limits_changed()
