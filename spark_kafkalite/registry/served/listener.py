"""The listener of the embedded registry for other processes, and whether it may listen: ``registry.listener*``.

Whoever reaches the listener can change the cluster, so beyond loopback it asks for authentication, unless whoever runs
it says in so many words that the network is to be trusted.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import REDACTED


@dataclass(frozen=True, slots=True)
class RegistryListener:
    """A checked address. ``digest`` is the ``user:password`` that every connection must prove; None asks for none."""

    host: str
    port: int
    digest: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, address: str, *, digest: str | None = None, insecure: bool = False) -> RegistryListener:
        """Return the listener of ``HOST:PORT`` (an IPv6 host in brackets). Raises ConfigError."""
        host, separator, port_text = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
            raise ConfigError(f"registry.listener={address}: not of the form HOST:PORT (an IPv6 host in brackets)")
        if digest is not None and not all(digest.partition(":")):
            raise ConfigError(f"registry.listener.digest={REDACTED}: not of the form USER:PASSWORD")
        if digest is None and not insecure and not is_loopback(host, "registry.listener"):
            raise ConfigError(
                f"registry.listener={address} can be reached from other hosts, and any client that reaches it can "
                "change the cluster: set registry.listener.digest=USER:PASSWORD, or registry.listener.insecure=true if "
                "the network is to be trusted, or listen on 127.0.0.1"
            )
        return cls(host, int(port_text), digest)

    def address(self, port: int) -> str:
        """Return what a client connects to when ``port`` is the one that was bound."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def is_loopback(host: str, setting: str) -> bool:
    """Say whether nobody on another host reaches what listens there. ConfigError, naming the setting, when that is not
    known; no host is every interface."""
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{setting}: the host {host} is not known: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
