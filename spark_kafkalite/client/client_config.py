"""What all of our clients have in common: settings, how they are parsed, and the frozen object that holds them.

Producers' and consumers' settings are in :mod:`.config`; an administrator has no others than these. An unknown name
is a warning in the log and not an error, as in Kafka's own clients; a bad value raises ConfigError. Settings that only
make sense on a JVM are known and have no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import shown_name, shown_value
from spark_kafkalite.security.client_security import PLAINTEXT, ClientSecurity, client_security
from spark_kafkalite.security.settings import (
    JVM_ONLY_SETTINGS,
    SECURITY_SETTINGS,
    SecurityProtocol,
    settings_without_effect,
)
from spark_kafkalite.settings import Setting, SettingGroup, property_name

_LOG = logging.getLogger("spark_kafkalite.client")

# Names that Kafka's Java clients know and that have no meaning here: warned about as such, not as misspellings.
_JVM_ONLY_SUFFIXES: Final = (".serializer", ".deserializer", ".classes", ".class")
_JVM_ONLY: Final = JVM_ONLY_SETTINGS | {"client.dns.lookup", "auto.include.jmx.reporter", "enable.metrics.push"}

COMMON_SETTINGS: Final = (
    Setting("bootstrap.servers", "list", (), "Brokers to ask first, host:port; any live one of them is enough."),
    Setting("client.id", "string", "spark-kafkalite", "Name of this client in the broker's logs and quotas."),
    Setting("request.timeout.ms", "int", 30_000, "How long to wait for an answer.", unit="ms", minimum=1),
    Setting("retry.backoff.ms", "long", 100, "Pause before the first retry; it doubles.", unit="ms", minimum=0),
    Setting("retry.backoff.max.ms", "long", 1_000, "Longest pause between retries.", unit="ms", minimum=0),
    Setting("reconnect.backoff.ms", "long", 50, "Pause before the first reconnection; it doubles.", "ms", 0),
    Setting("reconnect.backoff.max.ms", "long", 1_000, "Longest pause between reconnections.", "ms", 0),
    Setting("socket.connection.setup.timeout.ms", "long", 10_000, "How long one connection may take to open.", "ms", 1),
    Setting("connections.max.idle.ms", "long", 540_000, "Connections unused for this long are closed.", "ms", -1),
    Setting("metadata.max.age.ms", "long", 300_000, "Metadata is refreshed after this time.", "ms", 0),
    Setting("send.buffer.bytes", "int", -1, "SO_SNDBUF; -1 leaves it to the system.", "bytes", -1),
    Setting("receive.buffer.bytes", "int", -1, "SO_RCVBUF; -1 leaves it to the system.", "bytes", -1),
    *SECURITY_SETTINGS,
)

ADMIN_SETTINGS: Final = SettingGroup(
    "admin",
    (
        *COMMON_SETTINGS,
        Setting("default.api.timeout.ms", "int", 60_000, "Bound on calls without a timeout of their own.", "ms", 0),
    ),
)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What every client needs to talk to brokers. Times are milliseconds."""

    bootstrap_servers: tuple[str, ...]
    client_id: str = "spark-kafkalite"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    metadata_max_age_ms: int = 300_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    security: ClientSecurity = PLAINTEXT


def parse_settings(
    group: SettingGroup, settings: Mapping[str, object] | None, keywords: Mapping[str, object]
) -> dict[str, Any]:
    """Return all values of a group: defaults, then ``settings``, then ``keywords`` (snake case of the same names).

    Unknown names are logged as a warning with the nearest known one. A name given both ways raises ConfigError.
    """
    given: dict[str, object] = dict(settings or {})
    for keyword, value in keywords.items():
        name = property_name(keyword)
        if name in given:
            raise ConfigError(f"{name} is given twice: in the settings and as the keyword argument {keyword}")
        given[name] = value
    if isinstance(protocol := given.get("security.protocol"), str):
        # Kafka takes any case (SecurityProtocol.forName).
        given["security.protocol"] = protocol.strip().upper()
    for name in group.unknown(given):
        value = given.pop(name)
        if is_jvm_only(name):
            shown = shown_value(name, value)
            _LOG.warning("%s setting %s=%s has no effect in this client: it is for the JVM", group.title, name, shown)
        else:
            _LOG.warning("unknown %s setting %r is ignored%s", group.title, shown_name(name), group.hint(name))
    values = {**group.defaults(), **group.parse({name: value for name, value in given.items() if value is not None})}
    _warn_of_security_settings(values, given)
    return values


def _warn_of_security_settings(values: Mapping[str, Any], given: Iterable[str]) -> None:
    """Warn of settings that ``security.protocol`` leaves without effect: their user relies on a protection."""
    protocol = SecurityProtocol(values.get("security.protocol", "PLAINTEXT"))
    idle = settings_without_effect(protocol, given)
    if idle:
        _LOG.warning(
            "%s: no effect with security.protocol=%s; set it to %s",
            ", ".join(idle),
            protocol.value,
            protocol.with_effect_of(idle).value,
        )


def is_jvm_only(name: str) -> bool:
    """Whether Kafka's Java clients know a setting of this name, which has no meaning here."""
    return name in _JVM_ONLY or name.endswith(_JVM_ONLY_SUFFIXES)


def client_config(values: Mapping[str, Any]) -> ClientConfig:
    """Return the part that every client has. Raises ConfigError without a usable ``bootstrap.servers``."""
    servers = values["bootstrap.servers"]
    if not servers:
        raise ConfigError("bootstrap.servers is not set: name at least one broker as host:port")
    for server in servers:
        parse_address(server)
    return ClientConfig(
        bootstrap_servers=servers,
        client_id=values["client.id"],
        request_timeout_ms=values["request.timeout.ms"],
        default_api_timeout_ms=values.get("default.api.timeout.ms", 60_000),
        retry_backoff_ms=values["retry.backoff.ms"],
        retry_backoff_max_ms=max(values["retry.backoff.ms"], values["retry.backoff.max.ms"]),
        reconnect_backoff_ms=values["reconnect.backoff.ms"],
        reconnect_backoff_max_ms=max(values["reconnect.backoff.ms"], values["reconnect.backoff.max.ms"]),
        connection_setup_timeout_ms=values["socket.connection.setup.timeout.ms"],
        connections_max_idle_ms=values["connections.max.idle.ms"],
        metadata_max_age_ms=values["metadata.max.age.ms"],
        send_buffer_bytes=values["send.buffer.bytes"],
        receive_buffer_bytes=values["receive.buffer.bytes"],
        security=client_security(values),
    )


def admin_config(settings: Mapping[str, object] | None, keywords: Mapping[str, object]) -> ClientConfig:
    """Return an admin client's settings."""
    return client_config(parse_settings(ADMIN_SETTINGS, settings, keywords))


def parse_address(text: str) -> tuple[str, int]:
    """Return (host, port) of ``host:port`` or ``[ipv6]:port``, also behind a ``PROTOCOL://``.

    Raises ConfigError naming the text.
    """
    address = text.strip().rpartition("://")[2]
    host, separator, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"bootstrap.servers: {text!r} is not of the form host:port with a port from 1 to 65535")
    return host, int(port)
