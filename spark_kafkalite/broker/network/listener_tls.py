"""TLS of the broker's listeners, for both ends: channels of clients, and channels to other brokers.

Each listener with TLS has a context for its clients and, in a cluster, one for this broker as a client of the same
listener of other brokers. Both are made at the start, so that what cannot work stops it. ``tls_reload`` has them made
again when a key or trust store changes; connections keep the context that they began with.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spark_kafkalite.addresses import is_loopback
from spark_kafkalite.broker.network.listeners import Listener, listener_setting
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.network.tls_channel import TlsBuffers, TlsChannel
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.listener_settings import TLS_SETTINGS
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import ShownSettings
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.security.certificate import ends_s, subject_text
from spark_kafkalite.security.client_security import file_state
from spark_kafkalite.security.cluster_secret import broker_of_user
from spark_kafkalite.security.principal_rules import SETTING as RULES
from spark_kafkalite.security.principal_rules import PrincipalRules
from spark_kafkalite.security.server_tls import (
    check_accepts_itself,
    check_replaces,
    expiry_warning,
    names_host,
    server_context,
)
from spark_kafkalite.security.settings import SecurityProtocol
from spark_kafkalite.security.tls import TlsContext, TlsStream, client_context

logger = logging.getLogger(__name__)

_CLIENT_AUTH: Final = "ssl.client.auth"
_STORES: Final = ("ssl.keystore.location", "ssl.truststore.location")


class Contexts(NamedTuple):
    """What the settings of a listener make. ``client`` is None in a broker that is a cluster by itself.

    ``made_of`` are the values, and what the files looked like before they were read.
    """

    server: TlsContext
    client: TlsContext | None
    made_of: object


class ListenerTls:
    """One listener. ``contexts`` are those for new connections; the owner replaces them."""

    def __init__(self, listener: Listener, config: BrokerConfig) -> None:
        """Raises ConfigError, which names the listener."""
        self.listener = listener
        self._is_inner = listener.name == config.inner_listener.name
        self._is_clustered = config.zookeeper is not None
        values = self.values(config.values)
        try:
            self._rules = PrincipalRules(values[RULES])
        except ConfigError as error:
            raise ConfigError(f"listener {listener.name}: {error}") from None
        self.contexts = self.made(config.values)
        # Handshakes of clients so far, and those that failed for another reason than that the client went.
        self.handshakes = self.failed_handshakes = 0
        # Open connections, by version and cipher suite.
        self.open: Counter[tuple[str, str]] = Counter()

    def values(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``ssl.*`` settings of this listener out of those of the broker."""
        name = self.listener.name
        values = _values(settings, name)
        if self.listener.protocol.uses_sasl:
            # Source: kafka.network.SocketServer; the value for all is meant for clients that have no other name.
            values[_CLIENT_AUTH] = listener_setting({**settings, _CLIENT_AUTH: "none"}, name, _CLIENT_AUTH)
        return values

    def made(self, settings: Mapping[str, Any], *, instead_of: Contexts | None = None) -> Contexts:
        """Return contexts made of the broker's settings, and checked. Reads files: a thread may do it.

        ``instead_of`` are those that they shall replace. Raises ConfigError, which names the listener.
        """
        values = self.values(settings)
        made_of = self._made_of(values)
        try:
            server = server_context(values)
            client = client_context(values) if self._is_clustered else None
            if instead_of is not None:
                check_replaces(server, instead_of.server, values)
            if client is not None and self._is_inner:
                check_accepts_itself(server, client, self.listener.advertised_host)
        except ConfigError as error:
            raise ConfigError(f"listener {self.listener.name}: {error}") from None
        return Contexts(server, client, made_of)

    def is_made_of(self, settings: Mapping[str, Any]) -> bool:
        """Return whether the present contexts are those that settings and files would make now."""
        return self.contexts.made_of == self._made_of(self.values(settings))

    @staticmethod
    def _made_of(values: Mapping[str, Any]) -> object:
        return values, [file_state(values[name]) for name in _STORES]

    def warnings(self) -> list[str]:
        """Return what an operator should know of the present certificate."""
        listener, context = self.listener, self.contexts.server
        found = [text] if (text := expiry_warning(context)) is not None else []
        if not names_host(context, listener.advertised_host):
            found.append(
                f"{context.key_from}: the certificate does not name {listener.advertised_host!r}, which clients "
                "connect to (advertised.listeners); they refuse it unless their ssl.endpoint.identification.algorithm "
                "is empty"
            )
        return [f"listener {listener.name}: {text}" for text in found]

    @property
    def not_after_s(self) -> float:
        """When the first certificate of the present chain ends, in seconds since 1970."""
        return min(map(ends_s, self.contexts.server.chain))

    def name_client(self, session: Session, stream: TlsStream) -> None:
        """Set a session's principal by the certificate that its client has shown. Raises ConnectionError."""
        certificate = stream.peer_certificate()
        if certificate is None or self.listener.protocol.uses_sasl:
            return
        try:
            subject = subject_text(certificate)
        except ValueError as error:
            raise ConnectionError(errno.EACCES, f"its certificate has a subject that cannot be read: {error}") from None
        name = self._rules.name_of(subject)
        if name is None:
            raise ConnectionError(errno.EACCES, f"{RULES} give the subject {subject[:200]!r} no principal")
        if broker_of_user(name) is None:
            session.principal = f"User:{name}"
        elif not self._is_inner:
            # That is how brokers are named, which prove by the cluster secret that they are.
            raise ConnectionError(errno.EACCES, f"{RULES} name the subject {subject[:200]!r} like a broker: {name}")


class _WatchedClient:
    """Follows the channel of one client (``tls_channel.ChannelWatcher``)."""

    __slots__ = ("_negotiated", "_session", "_tls")

    def __init__(self, tls: ListenerTls, session: Session) -> None:
        self._tls = tls
        self._session = session
        self._negotiated: tuple[str, str] | None = None

    def complete(self, stream: TlsStream) -> None:
        self._tls.name_client(self._session, stream)
        self._tls.handshakes += 1
        self._negotiated = stream.negotiated()
        self._tls.open[self._negotiated] += 1

    def failed(self) -> None:
        self._tls.failed_handshakes += 1

    def closed(self) -> None:
        if self._negotiated is not None:
            self._tls.open[self._negotiated] -= 1


class BrokerTls:
    """All listeners with TLS, by name."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError."""
        self.listeners = {
            listener.name: ListenerTls(listener, config) for listener in config.listeners if listener.protocol.encrypts
        }
        self._config = config
        self._buffers = TlsBuffers()

    def warnings(self) -> list[str]:
        """Return what an operator should know of the listeners' certificates, and of passwords that are not hidden."""
        found = [text for listener in self.listeners.values() for text in listener.warnings()]
        for listener in self._config.listeners:
            if listener.protocol is SecurityProtocol.SASL_PLAINTEXT and not is_loopback(listener.host, "listeners"):
                found.append(
                    f"listener {listener.name}: SASL_PLAINTEXT does not encrypt, and other hosts reach it: on the "
                    "way, records and the passwords of PLAIN can be read; SASL_SSL encrypts"
                )
        return found

    def channel(self, connected: socket.socket, listener: Listener, session: Session) -> TlsChannel:
        """Return the channel of a client. Raises OSError."""
        tls = self.listeners[listener.name]
        stream = TlsStream(tls.contexts.server, server_side=True)
        return TlsChannel(connected, stream, self._buffers, _WatchedClient(tls, session))

    def peer_channel(self, connected: socket.socket, broker: BrokerInfo) -> TlsChannel:
        """Return the channel to another broker's inner listener. Raises OSError."""
        for name in (broker.inner_listener, self._config.inner_listener.name):
            if name in self.listeners and (context := self.listeners[name].contexts.client) is not None:
                break
        else:
            # While a cluster gets TLS, brokers whose listener has none yet reach the others, by its settings.
            try:
                context = client_context(_values(self._config.values, broker.inner_listener))
            except ConfigError as error:
                raise ConnectionError(errno.EINVAL, str(error)) from None
        return TlsChannel(connected, TlsStream(context, host=broker.inner_address[0]), self._buffers)


def _values(settings: Mapping[str, Any], listener: str) -> dict[str, Any]:
    """Return the ``ssl.*`` settings of a listener. They hold passwords, which their text hides."""
    return ShownSettings((each.name, listener_setting(settings, listener, each.name)) for each in TLS_SETTINGS)
