"""Rule R6: for how long a broker may act alone on the registry's last answer.

A broker that is cut off from the registry, or was stopped and goes on, may have been replaced without its knowledge. It
cannot have been before its session could end, so each answer of the registry is a lease: of two thirds of the session's
time, from the moment at which the question was *sent*. When it is over, the broker refuses what would need no other
broker to go wrong: acknowledgements with ``acks`` 0 and 1, and the latest offset. Requests of groups wait until its
followers confirm that it leads (R20). ``acks=all`` goes on, however long the registry is unavailable: no follower of a
newer leader fetches under the old epoch (R3), and the ISR cannot shrink without the registry (R4). So what is committed
is in the log of the broker that is elected.

With the embedded registry no other broker can be elected meanwhile: the lease has no end.

Times are seconds of a clock that goes on while the host sleeps (``Clock.monotonic_s``).
"""

from __future__ import annotations

import math
from typing import Final

from spark_kafkalite.errors import KafkaError, NotLeaderOrFollower, OffsetOutOfRange, OutOfOrderSequenceNumber

# Of the granted session timeout; the rest is for clocks that do not go alike.
LEASE_SHARE: Final = 2 / 3


class RegistryLease:
    """The lease of one broker, over all of its sessions. It has none until the registry has answered."""

    __slots__ = ("end_s",)

    def __init__(self, *, unlimited: bool = False) -> None:
        self.end_s = math.inf if unlimited else -math.inf

    def __repr__(self) -> str:
        return f"RegistryLease(end_s={self.end_s})"

    def renew(self, sent_s: float, session_timeout_ms: int) -> None:
        """Take note of an answer to what was sent at ``sent_s``. A delayed earlier one shortens nothing."""
        self.end_s = max(self.end_s, sent_s + session_timeout_ms / 1000 * LEASE_SHARE)

    def holds(self, now_s: float) -> bool:
        """Whether this broker may act alone."""
        return now_s < self.end_s

    def said(self, error: KafkaError, now_s: float) -> KafkaError:
        """Return the error that clients receive. A broker that may not lead any more does not report missing records:
        the present leader may have them, and clients would take them for lost."""
        if isinstance(error, (OffsetOutOfRange, OutOfOrderSequenceNumber)) and not self.holds(now_s):
            return NotLeaderOrFollower(f"this broker may not lead any more, and its log may be behind: {error}")
        return error

    def check_leads(self, now_s: float) -> None:
        """Raise NotLeaderOrFollower (6) unless this broker may act alone."""
        if not self.holds(now_s):
            raise NotLeaderOrFollower(
                "this broker has not heard from the registry for two thirds of its session: another one may lead by "
                "now; acks=all is served"
            )
