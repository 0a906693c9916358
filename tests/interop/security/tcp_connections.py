"""Which TCP connections there are to a port of this machine."""

from __future__ import annotations

from pathlib import Path

_ESTABLISHED = "01"


def connections_to(address: str) -> set[int]:
    """Return the clients' ports of all open connections to ``address`` (host:port)."""
    server_port = int(address.rpartition(":")[2])
    found = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if state == _ESTABLISHED and int(remote.rpartition(":")[2], 16) == server_port:
            found.add(int(local.rpartition(":")[2], 16))
    return found
