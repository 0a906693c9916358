"""One INFO line for each administrative change: what was changed, and the client that asked for it, with its principal.

The broker that the client asked writes the line, also where the controller has made the change: only this broker knows
the client's address and id. What another broker hands on (``controller_link``) is not written again. Handlers write
while they make up the answer, in slices, so that a request for thousands of topics does not hold the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from spark_kafkalite.broker.network.session import ANONYMOUS
from spark_kafkalite.broker.requests.exchange import Exchange

_LOG = logging.getLogger(__name__)

# How many of the things that one request has changed a line names.
MOST_NAMED: Final = 20
_LONGEST_CLIENT_ID: Final = 100


def log_change(exchange: Exchange, text: str, *arguments: object) -> None:
    """Write that a change was made; ``text`` and ``arguments`` are those of a logger."""
    if exchange.session.broker_id is not None:
        return
    client_id = exchange.client_id or "-"
    if len(client_id) > _LONGEST_CLIENT_ID:
        client_id = f"{client_id[:_LONGEST_CLIENT_ID]}..."
    principal = "" if exchange.session.principal == ANONYMOUS else f"{exchange.session.principal}, "
    _LOG.info(f"{text} (%sclient %s, client id %s)", *arguments, principal, exchange.session.peer, client_id)


def some_of(names: Sequence[object], count: int) -> str:
    """Return the first MOST_NAMED of ``count`` names with commas, and how many more there are."""
    more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
    return ", ".join(map(str, names[:MOST_NAMED])) + more
