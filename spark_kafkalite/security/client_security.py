"""How a client protects its connections: made once from its settings, and shared by all of its connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.security.settings import SecurityProtocol

if TYPE_CHECKING:
    import ssl

    from spark_kafkalite.security.sasl import Login


class ClientSecurity:
    """The security protocol of a client's connections, and what it needs. Made by :func:`client_security`.

    certificate must name its host.
    """

    __slots__ = ("login", "protocol", "tls_context")

    def __init__(self, protocol: SecurityProtocol, tls_context: ssl.SSLContext | None, login: Login | None) -> None:
        self.protocol = protocol
        self.tls_context = tls_context
        self.login = login

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol.value})"


PLAINTEXT: Final = ClientSecurity(SecurityProtocol.PLAINTEXT, None, None)


def client_security(values: Mapping[str, Any]) -> ClientSecurity:
    """Return what the parsed settings (all of ``SECURITY_SETTINGS``) amount to.

    Reads the key and trust stores. Raises ConfigError for what is missing, unreadable or contradictory.
    """
    protocol = SecurityProtocol(values["security.protocol"])
    if protocol is SecurityProtocol.PLAINTEXT:
        return PLAINTEXT
    # Only who encrypts or authenticates loads what that takes.
    context = login = None
    if protocol.encrypts:
        from spark_kafkalite.security.tls import client_context

        context = client_context(values)
    if protocol.uses_sasl:
        from spark_kafkalite.security.sasl import login_from

        login = login_from(values)
    return ClientSecurity(protocol, context, login)
