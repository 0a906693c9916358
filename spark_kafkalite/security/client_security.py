"""How a client protects its connections: made once from its settings, and shared by all of its connections."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.settings import SecurityProtocol

if TYPE_CHECKING:
    import ssl

    from spark_kafkalite.security.oauthbearer import OAuthBearerLogin
    from spark_kafkalite.security.sasl import Login
    from spark_kafkalite.security.tokens import HeldToken

_LOG: Final = logging.getLogger("spark_kafkalite.client")
_STORES: Final = ("ssl.keystore.location", "ssl.truststore.location")


class ClientSecurity:
    """The security protocol of a client's connections, and what it needs. Made by :func:`client_security`.

    ``tls_context`` is None without TLS, ``login`` without SASL. ``stores`` are the files that the context was made of.
    """

    __slots__ = ("_stores", "_tls_context", "login", "protocol")

    def __init__(
        self,
        protocol: SecurityProtocol,
        tls_context: ssl.SSLContext | None,
        login: Login | None,
        stores: StoreFiles | None = None,
    ) -> None:
        self.protocol = protocol
        self._tls_context = tls_context
        self.login = login
        self._stores = stores

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol.value})"

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """The context for a new connection, made again when a key or trust store has been replaced.

        Certificates that live for a day are renewed under clients that live for months. A store that cannot be read
        just now, because it is being written, leaves the context as it was.
        """
        if self._stores is not None:
            self._tls_context = self._stores.renewed() or self._tls_context
        return self._tls_context

    def current_token(self) -> HeldToken | None:
        """Return a token that other processes with the same settings can use; None but for OAUTHBEARER.

        Raises SaslAuthenticationFailed when none is to be had.
        """
        login = self._token_login()
        return None if login is None else login.current_token()

    def take_token(self, token: HeldToken) -> bool:
        """Use a token that another process has fetched, while it lives.

        Returns whether the next connection will do without an identity provider.
        """
        login = self._token_login()
        return login is None or login.take_token(token)

    def _token_login(self) -> OAuthBearerLogin | None:
        if self.login is None or self.login.mechanism != "OAUTHBEARER":
            return None
        from spark_kafkalite.security.oauthbearer import OAuthBearerLogin

        return self.login if isinstance(self.login, OAuthBearerLogin) else None


class StoreFiles:
    """The key and trust store of a client, and what they looked like when they were read."""

    __slots__ = ("_seen", "_values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._seen = self._state()

    def renewed(self) -> ssl.SSLContext | None:
        """Return the context that the files make now, None when they have not changed."""
        state = self._state()
        if state == self._seen:
            return None
        from spark_kafkalite.security.tls import client_context

        try:
            context = client_context(self._values)
        except ConfigError as error:
            _LOG.warning("a key or trust store has changed and cannot be used, the old one is: %s", error)
            return None
        # As of before they were read: what was written meanwhile is a change.
        self._seen = state
        return context

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(file_state(self._values.get(name)) for name in _STORES)


PLAINTEXT: Final = ClientSecurity(SecurityProtocol.PLAINTEXT, None, None)


def client_security(values: Mapping[str, Any]) -> ClientSecurity:
    """Return what the parsed settings (all of ``SECURITY_SETTINGS``) amount to.

    Reads the key and trust stores. Raises ConfigError for what is missing, unreadable or contradictory.
    """
    protocol = SecurityProtocol(values["security.protocol"])
    if protocol is SecurityProtocol.PLAINTEXT:
        return PLAINTEXT
    # Only who encrypts or authenticates loads what that takes.
    context = login = stores = None
    if protocol.encrypts:
        from spark_kafkalite.security.tls import client_context

        stores = StoreFiles(values)
        context = client_context(values)
    if protocol.uses_sasl:
        from spark_kafkalite.security.sasl import login_from

        login = login_from(values)
    return ClientSecurity(protocol, context, login, stores)


def file_state(path: str | None) -> tuple[int, int, int] | None:
    """Return what differs when a file has changed: its time in ns, size in bytes and inode; None without a file."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a NUL in the name, which the reading of the file tells
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
