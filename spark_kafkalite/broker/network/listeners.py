"""The addresses that a broker listens on, and those that it advertises to clients.

Pure: texts in, :class:`Listener` values out. The rules are Kafka's, with one that is stricter: listening on every
interface without an advertised address is an error at start. Clients on other hosts would otherwise receive an address
that they cannot connect to, and would notice much later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_kafkalite.addresses import address_text
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.prefixed_settings import SIMILAR
from spark_kafkalite.security.settings import SecurityProtocol

_ADDRESS = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]*):(?P<port>[0-9]{1,5})")
_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})
# The prefix of settings for one listener, and the mechanisms that may follow the listener's name.
LISTENER_PREFIX: Final = "listener.name."
_MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on. Its ports may be 0 until the socket is bound (see :meth:`bound`)."""

    name: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    # The values of all settings of the broker's file.
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def setting(self, name: str, mechanism: str | None = None) -> Any:
        """Return the value of a setting for this listener, or for one SASL mechanism of it.

        That is the value for the mechanism if there is one, else the one for the listener, else the one for all.
        """
        return listener_setting(self.settings, self.name, name, mechanism)

    def bound(self, port: int) -> Listener:
        """Return this listener once its socket has ``port``."""
        return replace(self, port=port, advertised_port=self.advertised_port or port)

    @property
    def endpoint(self) -> str:
        """What the registry and clients receive, ``NAME://HOST:PORT``."""
        return f"{self.name}://{address_text(self.advertised_host, self.advertised_port)}"


def listener_setting(values: Mapping[str, Any], listener: str, name: str, mechanism: str | None = None) -> Any:
    """Return the value of a setting for a listener, or for one mechanism of it; see :meth:`Listener.setting`."""
    own = f"{LISTENER_PREFIX}{listener.lower()}."
    for key in (f"{own}{mechanism.lower()}.{name}" if mechanism else None, own + name, name):
        if key is not None and (value := values.get(key)) is not None:
            return value
    return None


def check_part(name: str, part: str, listeners: Iterable[str]) -> None:
    """Raise ConfigError if the setting ``name`` is for a part that is no listener, and no mechanism of one.

    ``part`` is what ``name`` has between the prefix and the setting, in lower case.
    """
    names = [each.lower() for each in listeners]
    if part in names:
        return
    # A listener's name may have dots.
    own = max((each for each in names if part.startswith(each + ".")), key=len, default=None)
    if own is None:
        raise ConfigError(f"{name}: there is no listener {part!r}{_nearest(part, names)}")
    mechanism = part[len(own) + 1 :]
    if mechanism not in _MECHANISMS:
        raise ConfigError(f"{name}: there is no SASL mechanism {mechanism!r}{_nearest(mechanism, _MECHANISMS)}")


def _nearest(said: str, known: Sequence[str]) -> str:
    import difflib  # for mistakes only: a broker starts without it

    near = difflib.get_close_matches(said, known, n=1, cutoff=SIMILAR)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def parse_listeners(
    listeners: Iterable[str],
    advertised: Iterable[str],
    protocols: Iterable[str],
    settings: Mapping[str, Any] | None = None,
) -> tuple[Listener, ...]:
    """Return the listeners of the three settings ``listeners``, ``advertised.listeners`` and the protocol map.

    ``settings`` are the values of all settings of the broker, for :meth:`Listener.setting`.

    Raises ConfigError for a malformed address, a name or address given twice, an advertised listener that is not
    listened on or has no host, an every-interface listener that is not advertised, and an unknown protocol.
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
        protocol = _protocol(name, protocol_of.get(name, name))
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
        result.append(Listener(name, host, port, told_host, told_port, protocol, settings or {}))
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


def _protocol(listener: str, name: str) -> SecurityProtocol:
    try:
        return SecurityProtocol(name)
    except ValueError:
        known = ", ".join(each.value for each in SecurityProtocol)
        own = f"set listener.security.protocol.map=...,{listener}:PROTOCOL with one of {known}"
        raise ConfigError(f"listeners: {listener} has the unknown security protocol {name}; {own}") from None


def _protocols(texts: Iterable[str]) -> dict[str, str]:
    protocols = {}
    for text in texts:
        name, separator, protocol = text.partition(":")
        if not separator or not name or not protocol:
            raise ConfigError(f"listener.security.protocol.map={text}: not of the form NAME:PROTOCOL")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols
