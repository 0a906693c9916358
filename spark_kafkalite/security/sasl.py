"""SASL on the client's side: what a mechanism says in turn, and where its credentials come from. Bytes in, bytes out.

A :class:`Login` is made once per client from its settings, and makes an :class:`SaslExchange` for each connection; tokens
are looked up then, so that a long job survives their renewal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class SaslExchange(Protocol):
    """One authentication over one connection."""

    def first(self) -> bytes:
        """Return what the client says first."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return what the client says to the broker's bytes; None when it is content and the exchange is over.

        Raises SaslAuthenticationFailed when the broker cannot be trusted, or says why it refuses.
        """


class Login(Protocol):
    """Credentials, or the way to them."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name, as SaslHandshake sends it."""

    def exchange(self) -> SaslExchange:
        """Return the exchange for a new connection. May take as long as a token does to come.

        Raises SaslAuthenticationFailed when there are no credentials to be had, saying why.
        """


def login_from(values: Mapping[str, Any]) -> Login:
    """Return the login that the parsed ``sasl.*`` settings describe.

    Raises ConfigError for what is missing, contradictory or not supported.
    """
    raise NotImplementedError
