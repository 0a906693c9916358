"""How many files and sockets the broker may have open, and what it does with them.

The soft limit is raised to the hard one at the start. Of what there is, each partition takes one descriptor (its active
segment), each connection one, and an eighth of the limit, at most 1,024, is kept for files that are read (old segments,
indexes); those are given back when descriptors run out. Some 50 more serve the rest. So 2,000 partitions and 1,000
connections fit into a limit of 4,096.

Beyond the limit nothing breaks: connections are turned away, a segment that cannot be rolled or a log that cannot be
made fails its request with a retriable error, and both are tried again.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

# What the kernel gives at most by default; "unlimited" may not be taken literally.
_ENOUGH: Final = 1_048_576
_KEPT_OPEN: Final = 1024
_SHARE_KEPT_OPEN: Final = 8


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


def kept_open(limit: int) -> int:
    """Return how many files that are only read may stay open under a limit."""
    return max(min(_KEPT_OPEN, limit // _SHARE_KEPT_OPEN), 1)
