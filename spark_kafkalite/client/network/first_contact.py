"""When a client that has never reached its cluster gives up.

A program that accepts connections but does not answer as a broker may be a broker that starts or stops. But when none
has ever answered, it is far more often a wrong address or a wrong ``security.protocol``. An error after some seconds
lets the user fix it; a timeout after minutes would explain nothing. The client keeps waiting for an address that
refuses connections: nothing listens there yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import BrokerUnreachable, HandshakeFailed, NoBrokerThere

GIVE_UP_AFTER_S: Final = 8.0
# Another try would take longer than what is left.
_NO_TIME_S: Final = 0.25
# What one address is given at least to go on as a broker does.
_LEAST_TRY_S: Final = 1.5


class FirstContact:
    """What one client knows of that. Its threads share it; what they write at once is the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self.made = False
        # At an address that the cluster advertises, and not at one of bootstrap.servers alone.
        self.made_as_advertised = False

    def try_until(self, deadline: Deadline, addresses_left: int) -> Deadline:
        """Return until when to try to open a connection to the next address, so that the others have their time."""
        if self.made:
            return deadline
        now_s = self._clock.monotonic_s()
        if self._began_s is None:
            self._began_s = now_s
        left_s = self._began_s + GIVE_UP_AFTER_S - now_s
        return deadline.earlier_of(1000 * max(_LEAST_TRY_S, left_s / addresses_left))

    def check(self, failures: Sequence[BrokerUnreachable], told: str) -> None:
        """Raise NoBrokerThere when it is time to, after every address was tried; ``told`` describes their failures."""
        if self.made or not failures or not all(isinstance(each, HandshakeFailed) for each in failures):
            return
        certain = all(isinstance(each, HandshakeFailed) and each.is_certain for each in failures)
        tried_s = 0.0 if self._began_s is None else self._clock.monotonic_s() - self._began_s
        if certain or tried_s > GIVE_UP_AFTER_S - _NO_TIME_S:
            raise NoBrokerThere(told) from failures[0]
