"""ZooKeeper's four-letter words: what a server reports of itself, and why no session can be opened there.

ZooKeeper's protocol has no words for a refused session: the server closes the connection. Our registry with a full disk
answers "ruok" with its reason. ZooKeeper answers "imok", or that the word is not in its list of allowed ones. Its
version is in the answer to "srvr", which every version allows unless its list forbids it.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from typing import Final

WORD: Final = b"ruok"
_ABOUT: Final = b"srvr"
_VERSION: Final = re.compile(r"^Zookeeper version: (\d+(?:\.\d+)*)", re.MULTILINE)
_NO_ROOM: Final = "no room: "
_ASKED_FOR_S: Final = 1.0
_MOST_BYTES: Final = 512


def answer(missing_room: str | None) -> str:
    """Return what a registry answers; ``missing_room`` is why its disk takes nothing, None when it does."""
    return "imok" if missing_room is None else f"{_NO_ROOM}{missing_room}"[:_MOST_BYTES]


def why_no_session(hosts: Sequence[tuple[str, int]], timeout_s: float) -> str:
    """Ask each server, for a second at most, why no session was opened within ``timeout_s``; return that as a text."""
    within = f"within {round(timeout_s, 1):g} s"
    mute = []
    for host, port in hosts:
        where = f"{host}:{port}"
        said = _ask(host, port)
        if said is None:
            continue
        if said.startswith(_NO_ROOM):
            return (
                f"the registry at {where} has opened no session {within}, because its disk has no room "
                f"({said.removeprefix(_NO_ROOM)}); free space on that disk"
            )
        mute.append(where)
    if mute:
        return (
            f"no session was opened {within} at {', '.join(mute)}, though connections are accepted there; look into "
            "the log of that ZooKeeper: it may have lost its quorum, or zookeeper.connect names something else"
        )
    everywhere = ",".join(f"{host}:{port}" for host, port in hosts)
    return f"no ZooKeeper answers at {everywhere} {within}; start it, or correct zookeeper.connect"


def versions(hosts: Sequence[tuple[str, int]]) -> str:
    """Ask each server, for a second at most, its version; return that as a text: ``h:2181 (3.4.14)``."""
    told = []
    for host, port in hosts:
        found = _VERSION.search(_ask(host, port, _ABOUT) or "")
        told.append(f"{host}:{port} ({found[1] if found else 'version not known, it does not answer srvr'})")
    return ", ".join(told)


def _ask(host: str, port: int, word: bytes = WORD) -> str | None:
    """Return a server's answer, "" when it is empty; None when it takes no connection."""
    said = b""
    until_s = time.monotonic() + _ASKED_FOR_S
    try:
        connected = socket.create_connection((host, port), _ASKED_FOR_S)
    except OSError:
        return None
    with connected:
        try:
            connected.sendall(word)
            while len(said) < _MOST_BYTES and (left_s := until_s - time.monotonic()) > 0:
                connected.settimeout(left_s)
                more = connected.recv(_MOST_BYTES)
                if not more:
                    break
                said += more
        except OSError:
            pass  # it is told by what has arrived
    return said.decode("ascii", "replace")
