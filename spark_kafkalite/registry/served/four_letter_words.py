"""ZooKeeper's four-letter words, which a client may send instead of a session's first frame, and their answers.

Those that only read and that tools ask for are known: ruok, srvr, stat, isro, envi. While the registry's disk is full,
"ruok" is answered "no room: REASON" in place of "imok".
Source: zookeeper/server/NIOServerCnxn.java, zookeeper/server/command.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from spark_kafkalite.registry import ruok
from spark_kafkalite.registry.served.connection import TreeConnection
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry

_VERSION: Final = "3.9.5-kafkalite"


def answer_to(
    word: bytes, registry: EmbeddedRegistry, connections: Collection[TreeConnection], received: int, sent: int
) -> str | None:
    """Return the answer, None when it is no such word. ``received`` and ``sent`` count frames."""
    if word == ruok.WORD:
        return ruok.answer(registry.missing_room)
    if word == b"isro":
        return "rw"
    if word == b"envi":
        return f"Environment:\nzookeeper.version={_VERSION}\n"
    if word not in (b"srvr", b"stat"):
        return None
    clients = "".join(f" {connection!r}\n" for connection in connections) if word == b"stat" else ""
    return (
        f"Zookeeper version: {_VERSION}\n"
        + (f"Clients:\n{clients}\n" if clients else "")
        + f"Received: {received}\nSent: {sent}\nConnections: {len(connections)}\n"
        f"Outstanding: {sum(connection.in_flight for connection in connections)}\n"
        f"Zxid: {registry.last_zxid:#x}\nMode: standalone\nNode count: {len(registry.tree.nodes)}\n"
    )
