"""The limit of open files, and how the broker divides it between partitions and connections.

At its start the broker raises the soft limit to the hard limit. Then it divides the limit, so that a start is always
possible, and neither partitions nor connections take the other's descriptors:

==================  =================================================  ==============================
use                 number of descriptors                              under limits of 4,096 and 256
==================  =================================================  ==============================
the broker itself   a quarter of the limit, at most 64; half of them   64, 64
                    for the connections of other brokers if these
                    have their own listener
read-only files     an eighth of the limit, at most 1,024; released    512, 32
                    when descriptors run out
clients of          a sixteenth of the limit, at most 1,000; only if   256, 16
registry.listener   that is set
partitions and      the rest: one each (a partition's active segment,  3,520, 160
connections         a connection's socket)
==================  =================================================  ==============================

Within the rest, the broker reserves an eighth of the limit, at most 1,024, for connections. It refuses new partitions
(POLICY_VIOLATION) that would take these descriptors, or those of open connections. It closes new connections for which
the partitions leave no descriptor. So a limit of 4,096 is enough for 2,000 partitions and 1,000 connections, and a
limit of 256 for 128 partitions.

A start opens at most as many logs as could be created, internal topics first. The other logs stay closed until topics
are deleted, and the broker answers their requests with KAFKA_STORAGE_ERROR. This happens only after the limit was
lowered, or after an upgrade from a version that counted less strictly.

If descriptors run out all the same, the log stays intact. A segment that cannot be rolled fails its request with a
retriable error, and the broker tries again. A rolled segment also needs a descriptor until it is synced; the first
three shares of the table include these.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

# The kernel's default maximum. The broker also uses it for an unlimited limit.
_ENOUGH: Final = 1_048_576
# For standard streams, the loop, listeners, registry, locks, threads that briefly open a file, the cleaner's process.
_OWN: Final = 64
_SHARE_OWN: Final = 4
_KEPT_OPEN: Final = 1024
_SHARE_KEPT_OPEN: Final = 8
_CONNECTIONS: Final = 1024
_SHARE_CONNECTIONS: Final = 8
_REGISTRY_CLIENTS: Final = 1000
_SHARE_REGISTRY_CLIENTS: Final = 16
_RAISE: Final = "raise it (ulimit -n, or LimitNOFILE= of the service) and restart the broker"


class Descriptors:
    """A divided limit of open files. Only arithmetic: the callers count open descriptors."""

    def __init__(self, limit: int, *, serves_registry: bool = False) -> None:
        """``limit``: the limit in force, as :func:`raise_limit` returns it."""
        self.limit = limit
        own = max(min(_OWN, limit // _SHARE_OWN), 1)
        self._for_brokers = own // 2
        # How many read-only files may stay open.
        self.kept_open = max(min(_KEPT_OPEN, limit // _SHARE_KEPT_OPEN), 1)
        # How many clients of registry.listener may be connected.
        self.registry_clients = max(min(_REGISTRY_CLIENTS, limit // _SHARE_REGISTRY_CLIENTS), 1)
        self._always_for_connections = max(min(_CONNECTIONS, limit // _SHARE_CONNECTIONS), 1)
        self._rest = max(limit - own - self.kept_open - (self.registry_clients if serves_registry else 0), 2)

    @property
    def most_partitions(self) -> int:
        """How many partitions the broker may host while few clients are connected."""
        return max(self._rest - self._always_for_connections, 1)

    def most_connections(self, partitions: int, *, for_brokers: bool = False) -> int:
        """Return how many connections may be open together with so many hosted partitions.

        ``for_brokers``: for a connection of another broker, at a listener that only brokers use.
        """
        most = max(self._rest - partitions, self._always_for_connections)
        return most + self._for_brokers if for_brokers else most

    def room_for_partitions(self, connections: int) -> int:
        """Return how many partitions the broker may host while so many connections are open."""
        return max(self._rest - max(connections, self._always_for_connections), 0)

    def why_not_hosted(self, what: str, more: int, hosted: int, connections: int) -> str:
        """Return the error text for partitions beyond :meth:`room_for_partitions`.

        ``what`` names the topic, ``more`` counts its new partitions. ``hosted`` counts the partitions that exist or
        that the broker creates at present, ``connections`` the open connections.
        """
        beside = f" next to {connections} open connections" if connections > self._always_for_connections else ""
        return (
            f"{what}: {more} more partitions cannot be hosted: the limit of open files is {self.limit}, which leaves "
            f"room for {self.room_for_partitions(connections)} partitions{beside}, and {hosted} are hosted; {_RAISE}, "
            "or delete topics"
        )

    @property
    def why_log_stays_closed(self) -> str:
        """The error text for a log beyond :attr:`most_partitions`."""
        return (
            f"the limit of open files is {self.limit}, which leaves room for {self.most_partitions} partitions, and as "
            f"many are open; {_RAISE}, or delete topics"
        )

    @property
    def remedy(self) -> str:
        """What to do before the limit is reached."""
        return f"the limit of open files is {self.limit}; {_RAISE}, or delete topics"

    def why_turned_away(self, partitions: int) -> str:
        """Return the text about a connection beyond :meth:`most_connections`."""
        return (
            f"the limit of open files is {self.limit}, which leaves room for {self.most_connections(partitions)} "
            f"connections next to {partitions} partitions; {_RAISE}"
        )


def registry_connections(limit: int) -> int:
    """Return how many connections ``kafkalite registry``, which has no logs, may accept under a limit."""
    return max(min(_REGISTRY_CLIENTS, limit - min(_OWN, limit // _SHARE_OWN)), 1)


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.warning("cannot raise the limit of open files from %d to %d: %s", soft, wanted, error)
        return soft
    logger.info("raised the limit of open files from %d to %d", soft, wanted)
    return wanted
