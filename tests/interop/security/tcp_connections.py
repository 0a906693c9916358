"""Which TCP connections there were to a port of this machine, also those that have ended within the last minute."""

from __future__ import annotations

from pathlib import Path


def connections_to(address: str) -> set[int]:
    """Return the clients' ports of all connections to ``address`` (host:port) that the kernel still knows.

    It knows one that was closed in good order for a minute more (TIME_WAIT), on the side that closed it.
    """
    server_port = int(address.rpartition(":")[2])
    found = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        local, remote = (int(end.rpartition(":")[2], 16) for end in line.split()[1:3])
        if remote == server_port:
            found.add(local)
        elif local == server_port and remote:
            found.add(remote)
    return found
