"""The addresses that a broker listens on, and those that it advertises to clients.

Pure: texts in, :class:`Listener` values out. The rules are Kafka's, with one that is stricter: listening on every
interface without an advertised address is an error at start. Clients on other hosts would otherwise receive an address
that they cannot connect to, and would notice much later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_kafkalite.addresses import address_text
from spark_kafkalite.errors import ConfigError

_ADDRESS = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]*):(?P<port>[0-9]{1,5})")
_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})
_SERVED_PROTOCOLS = frozenset({"PLAINTEXT"})


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on. Its ports may be 0 until the socket is bound (see :meth:`bound`)."""

    name: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int

    def bound(self, port: int) -> Listener:
        """Return this listener once its socket has ``port``."""
        return replace(self, port=port, advertised_port=self.advertised_port or port)

    @property
    def endpoint(self) -> str:
        """What the registry and clients receive, ``NAME://HOST:PORT``."""
        return f"{self.name}://{address_text(self.advertised_host, self.advertised_port)}"


def parse_listeners(
    listeners: Iterable[str], advertised: Iterable[str], protocols: Iterable[str]
) -> tuple[Listener, ...]:
    """Return the listeners of the three settings ``listeners``, ``advertised.listeners`` and the protocol map.

    Raises ConfigError for a malformed address, a name or address given twice, an advertised listener that is not
    listened on or has no host, an every-interface listener that is not advertised, and an unserved protocol.
    """
    protocol_of = _protocols(protocols)
    bound = _addresses("listeners", listeners)
    if not bound:
        raise ConfigError("listeners is empty: name at least one, for example PLAINTEXT://127.0.0.1:9092")
    told = _addresses("advertised.listeners", advertised)
    for name in told:
        if name not in bound:
            raise ConfigError(f"advertised.listeners names {name}, which is not one of listeners ({', '.join(bound)})")
    taken: dict[tuple[str, int], str] = {}
    result = []
    for name, (host, port) in bound.items():
        protocol = protocol_of.get(name, name)
        if protocol not in _SERVED_PROTOCOLS:
            raise ConfigError(
                f"listeners: {name} has the security protocol {protocol}; served are "
                f"{', '.join(sorted(_SERVED_PROTOCOLS))} (a name of your own needs listener.security.protocol.map)"
            )
        if port and (host, port) in taken:
            raise ConfigError(f"listeners: {name} and {taken[host, port]} both listen on {address_text(host, port)}")
        taken[host, port] = name
        told_host, told_port = told.get(name, (host, port))
        if told_host in _EVERY_INTERFACE:
            where = "advertised.listeners" if name in told else "listeners"
            raise ConfigError(
                f"{where}={name}://{address_text(told_host, told_port)} means every interface, which no client can "
                f"connect to: set advertised.listeners={name}://HOST:{port} with a host that clients reach"
            )
        result.append(Listener(name, host, port, told_host, told_port))
    return tuple(result)


def _addresses(setting: str, texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    addresses: dict[str, tuple[str, int]] = {}
    for text in texts:
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ConfigError(f"{setting}={text}: not of the form NAME://HOST:PORT (an IPv6 host in brackets)")
        name, host, port = match["name"].upper(), match["host"].strip("[]"), int(match["port"])
        if port > 65535:
            raise ConfigError(f"{setting}={text}: port {port} is above 65535")
        if name in addresses:
            raise ConfigError(f"{setting} names the listener {name} twice")
        addresses[name] = (host, port)
    return addresses


def _protocols(texts: Iterable[str]) -> dict[str, str]:
    protocols = {}
    for text in texts:
        name, separator, protocol = text.partition(":")
        if not separator or not name or not protocol:
            raise ConfigError(f"listener.security.protocol.map={text}: not of the form NAME:PROTOCOL")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols
