"""How many connections clients may open in a second: at the broker, at one listener, and from one address (KIP-612).

The first two are settings, ``max.connection.creation.rate`` and ``listener.name.NAME.max.connection.creation.rate``.
While either is used up, the broker accepts no connections there, which wait in the kernel. The third is a quota of the
address, ``connection_creation_rate``. A connection over it is accepted, kept unread for a while, and closed; it counts
nowhere else. Otherwise one address would keep the others out.

Source: kafka.network.ConnectionQuotas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_kafkalite.broker.quotas.allowance import MOST_ALLOWANCES, Allowance, Windows, drop_oldest
from spark_kafkalite.broker.quotas.limits import QuotaLimits, entity_address

# How long connections wait at most, in the kernel or unread. Source: ConnectionQuotas.maxThrottleTimeMs.
MOST_DELAY_S: Final = 1.0
UNLIMITED: Final = 2**31 - 1


class ConnectionRates:
    """See the module's text. Times are in seconds of ``now_s``."""

    def __init__(self, now_s: Callable[[], float], windows: Windows, limits: QuotaLimits) -> None:
        self._now_s = now_s
        self._windows = windows
        self._limits = limits
        # By listener; that of the whole broker under "".
        self._of_listeners: dict[str, tuple[float, Allowance]] = {}
        self._of_addresses: dict[str, Allowance] = {}

    def limits_changed(self) -> None:
        """Obey the quotas of addresses as they are now."""
        now_s = self._now_s()
        for address, allowance in list(self._of_addresses.items()):
            bound = self._limits.of_address(address)
            if bound is None:
                del self._of_addresses[address]
            else:
                allowance.obey(bound, now_s)

    def delay_s(self, listener: str, rate: float) -> float:
        """Return how long to accept no connection at a listener, "" for the broker, that may get ``rate`` a second."""
        if rate >= UNLIMITED:
            return 0.0
        return min(self._of(listener, rate).owed_s(self._now_s()), MOST_DELAY_S)

    def accepted(self, listener: str, rate: float) -> None:
        """Count a connection there."""
        if rate < UNLIMITED:
            self._of(listener, rate).charge(1, self._now_s())

    def _of(self, listener: str, rate: float) -> Allowance:
        known = self._of_listeners.get(listener)
        if known is None:
            known = self._of_listeners[listener] = rate, Allowance(rate, self._windows, self._now_s())
        elif known[0] != rate:
            known[1].obey(rate, self._now_s())
            known = self._of_listeners[listener] = rate, known[1]
        return known[1]

    def address_delay_s(self, host: str) -> float:
        """Count a connection from an address; return for how long it is kept before it is closed, 0 if it may stay."""
        if not self._limits.addresses_have_some:
            return 0.0
        address = entity_address(host)
        allowance = self._of_addresses.get(address)
        now_s = self._now_s()
        if allowance is None:
            bound = self._limits.of_address(address)
            if bound is None:
                return 0.0
            if len(self._of_addresses) >= MOST_ALLOWANCES:
                drop_oldest(self._of_addresses)
            allowance = self._of_addresses[address] = Allowance(bound, self._windows, now_s)
        owed_s = allowance.owed_s(now_s)
        if owed_s > 0:
            return min(owed_s, MOST_DELAY_S)
        allowance.charge(1, now_s)
        return 0.0
