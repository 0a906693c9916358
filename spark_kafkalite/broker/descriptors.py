"""The limit of open files: how many descriptors partitions and connections may take of it.

The soft limit is raised to the hard one at the start, and the limit is then divided, so that a start is always
possible and neither partitions nor connections take what the other needs:

==================  =================================================  ==============================
what                how many                                           under limits of 4,096 and 256
==================  =================================================  ==============================
the broker itself   a quarter of the limit, at most 64; half of that   64, 64
                    for the connections of other brokers where these
                    have a listener to themselves
files that are      an eighth of the limit, at most 1,024; given back  512, 32
only read           when descriptors run out
clients of          a sixteenth of the limit, at most 1,000; only      256, 16
registry.listener   where it is set
partitions and      the rest: one each (a partition's active segment,  3,520, 160
connections         a connection's socket)
==================  =================================================  ==============================

Of that rest an eighth of the limit, at most 1,024, is kept for connections: new partitions are refused
(POLICY_VIOLATION) when they would take it, or what open connections hold. Connections beyond what the partitions leave
are turned away.
So 2,000 partitions and 1,000 connections fit into a limit of 4,096, and 128 partitions into one of 256.

A start opens as many logs as may be created, internal topics' first. Others stay closed, their requests are answered
with KAFKA_STORAGE_ERROR, and they are opened when topics have been deleted: only a limit that was lowered, or an older
version that counted less strictly, leaves any.

Beyond the limit nothing breaks: a segment that cannot be rolled fails its request with a retriable error, and is tried
again. While it is not yet synced, a rolled segment holds a descriptor as well; the first three shares pay for it.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

# What the kernel gives at most by default; "unlimited" may not be taken literally.
_ENOUGH: Final = 1_048_576
# Standard streams, the loop, listeners, registry, locks, threads that open a file for a moment, the cleaner's process.
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
    """A limit of open files, divided. Plain arithmetic; others count what is open."""

    def __init__(self, limit: int, *, serves_registry: bool = False) -> None:
        """``limit`` is that in force, as :func:`raise_limit` returns it."""
        self.limit = limit
        own = max(min(_OWN, limit // _SHARE_OWN), 1)
        self._for_brokers = own // 2
        # How many files that are only read may stay open.
        self.kept_open = max(min(_KEPT_OPEN, limit // _SHARE_KEPT_OPEN), 1)
        # How many clients of registry.listener may be connected.
        self.registry_clients = max(min(_REGISTRY_CLIENTS, limit // _SHARE_REGISTRY_CLIENTS), 1)
        self._always_for_connections = max(min(_CONNECTIONS, limit // _SHARE_CONNECTIONS), 1)
        self._rest = max(limit - own - self.kept_open - (self.registry_clients if serves_registry else 0), 2)

    @property
    def most_partitions(self) -> int:
        """How many partitions may be hosted while few clients are connected."""
        return max(self._rest - self._always_for_connections, 1)

    def most_connections(self, partitions: int, *, for_brokers: bool = False) -> int:
        """Return how many connections may be open beside so many hosted partitions when one more is a client's, or
        that of another broker at a listener for brokers alone."""
        most = max(self._rest - partitions, self._always_for_connections)
        return most + self._for_brokers if for_brokers else most

    def room_for_partitions(self, connections: int) -> int:
        """Return how many partitions may be hosted while so many connections are open."""
        return max(self._rest - max(connections, self._always_for_connections), 0)

    def why_not_hosted(self, what: str, more: int, hosted: int, connections: int) -> str:
        """What is said of partitions beyond :meth:`room_for_partitions`.

        ``what`` names the topic that is to get ``more``; ``hosted`` are there or being made, ``connections`` are open.
        """
        beside = f" beside {connections} open connections" if connections > self._always_for_connections else ""
        return (
            f"{what}: {more} more partitions cannot be hosted: the limit of open files is {self.limit}, which leaves "
            f"room for {self.room_for_partitions(connections)} partitions{beside}, and {hosted} are there; {_RAISE}, "
            "or delete topics"
        )

    @property
    def why_log_stays_closed(self) -> str:
        """What is said of a log beyond :attr:`most_partitions`."""
        return (
            f"the limit of open files is {self.limit}, which leaves room for {self.most_partitions} partitions, and as "
            f"many are open; {_RAISE}, or delete topics"
        )

    def why_turned_away(self, partitions: int) -> str:
        """What is said of a connection beyond :meth:`most_connections`."""
        return (
            f"the limit of open files is {self.limit}, which leaves room for {self.most_connections(partitions)} "
            f"connections beside {partitions} partitions; {_RAISE}"
        )


def registry_connections(limit: int) -> int:
    """Return how many connections ``kafkalite registry``, which has no logs, may have under a limit."""
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
