"""The listener of the embedded registry for other processes of the same host: ``registry.listener*``.

The embedded registry is for one host: it listens on loopback alone. Several hosts share a ZooKeeper ensemble, which one
process cannot replace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from spark_kafkalite.addresses import NO_ADDRESS, address_text, host_and_port, is_loopback
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import REDACTED

# What an address that other hosts reach is answered with.
ONE_HOST_ONLY: Final = (
    "the embedded registry serves this host only, on a loopback address such as 127.0.0.1; brokers, registry consumers "
    'and tools on other hosts need a ZooKeeper ensemble (docs/cluster.md, "On several hosts")'
)


@dataclass(frozen=True, slots=True)
class RegistryListener:
    """A checked address. ``digest`` is the ``user:password`` that every connection must prove; None asks for none."""

    host: str
    port: int
    digest: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, address: str, *, digest: str | None = None) -> RegistryListener:
        """Return the listener of ``HOST:PORT`` (an IPv6 host in brackets). Raises ConfigError, also for an address that
        is not loopback."""
        host, port = host_and_port(address, "registry.listener")
        if not host:
            raise ConfigError(f"registry.listener={address}: {NO_ADDRESS}")
        if digest is not None and not all(digest.partition(":")):
            raise ConfigError(f"registry.listener.digest={REDACTED}: not of the form USER:PASSWORD")
        if not is_loopback(host, "registry.listener"):
            raise ConfigError(f"registry.listener={address}: {ONE_HOST_ONLY}")
        return cls(host, port, digest)

    def address(self, port: int) -> str:
        """Return what a client connects to when ``port`` is the one that was bound."""
        return address_text(self.host, port)
