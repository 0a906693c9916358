"""Who is told that a client's connection has closed."""

from __future__ import annotations

from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import Session


def test_every_listener_is_told_once() -> None:
    session = Session("peer", Listener("P", "h", 1, "h", 1))
    first: list[Session] = []
    second: list[Session] = []
    for _ in range(3):
        # As a client does that opens one fetch session after another.
        session.call_when_closed(first.append)
    session.call_when_closed(second.append)
    assert (first, second) == ([], [])
    session.connection_closed()
    session.connection_closed()
    assert first == second == [session]
