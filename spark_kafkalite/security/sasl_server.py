"""The server's side of SASL: the interface of a mechanism, and PLAIN. Bytes in, bytes out, no clock and no socket.

A :class:`SaslServer` is one exchange with one client. ``security.scram`` has the one of SCRAM,
``security.oauthbearer_server`` that of OAUTHBEARER. An exchange raises SaslAuthenticationFailed with the reason, which
is for the broker's own log: clients get one text for every failure.

PLAIN (RFC 4616) is one message, ``[AUTHZID] NUL USER NUL PASSWORD`` in UTF-8. Its users are options of the login module
in ``sasl.jaas.config``, as in Apache Kafka:

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="PASSWORD" user_bob="PASSWORD";

Source: org.apache.kafka.common.security.plain.internals.PlainSaslServer. An authorization id other than the user's name
is refused, and not before the password has been checked (CVE-2017-12610).
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Awaitable, Mapping
from typing import Final, Protocol

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.cluster_secret import RESERVED_USERS, is_reserved_user
from spark_kafkalite.security.jaas import PLAIN_MODULE, parse_jaas

PLAIN: Final = "PLAIN"
# A principal is written into the log and into registry nodes.
MAX_USER_CHARS: Final = 255

_USER_OPTION: Final = "user_"


class SaslServer(Protocol):
    """One exchange. ``user`` is the name that the client claims, empty until it is known.

    ``refusal`` is why the client is refused, in a mechanism that has the client answer once more before the exchange
    fails. ``lifetime_s`` is for how many seconds after the end of the exchange the client's credentials are valid.
    """

    user: str
    refusal: str
    lifetime_s: float

    @property
    def is_done(self) -> bool:
        """Whether the client has authenticated."""
        ...

    def answer(self, message: bytes) -> bytes | Awaitable[bytes]:
        """Return the reply to the client's message, or what waits for it. Raises SaslAuthenticationFailed."""
        ...


class PlainServer:
    """The exchange of PLAIN."""

    refusal = ""
    lifetime_s = math.inf

    def __init__(self, passwords: Mapping[str, bytes]) -> None:
        """``passwords`` are those of all users, in UTF-8, by name."""
        self.user = ""
        self.is_done = False
        self._passwords = passwords

    def answer(self, message: bytes) -> bytes:
        try:
            authzid, user, password = message.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslAuthenticationFailed("PLAIN: the client's message is not UTF-8") from None
        except ValueError:
            raise SaslAuthenticationFailed(
                "PLAIN: the client's message does not consist of three parts with NUL between them"
            ) from None
        self.user = user
        known = self._passwords.get(user)
        # A known user costs what an unknown one does.
        decoy = secrets.token_bytes(32)
        is_right = hmac.compare_digest(decoy if known is None else known, password.encode())
        if not user or not password or known is None or not is_right:
            raise SaslAuthenticationFailed("PLAIN: the user does not exist or the password is wrong")
        if authzid not in ("", user):
            raise SaslAuthenticationFailed("PLAIN: a client may act only as its own user")
        self.is_done = True
        return b""


def plain_passwords(jaas: str, setting: str) -> dict[str, bytes]:
    """Return the passwords in the value of ``sasl.jaas.config``, in UTF-8, by user.

    ``setting`` is the name under which the value was given. Raises ConfigError, which shows no password.
    """
    try:
        entry = parse_jaas(jaas)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {str(error).removeprefix('sasl.jaas.config: ')}") from None
    if entry.module != PLAIN_MODULE:
        raise ConfigError(f"{setting}: names {entry.module_name}; for PLAIN give {PLAIN_MODULE} required user_NAME=...")
    passwords: dict[str, bytes] = {}
    for option, password in entry.options.items():
        if not option.startswith(_USER_OPTION):
            continue
        user = option.removeprefix(_USER_OPTION)
        problem = user_problem(user)
        if problem is not None:
            raise ConfigError(f"{setting}: {problem}")
        if not password:
            raise ConfigError(f"{setting}: user {user} has an empty password; give it one")
        passwords[user] = password.encode()
    if not passwords:
        raise ConfigError(f'{setting}: names no user; add an option user_NAME="PASSWORD" for each')
    return passwords


def user_problem(user: str) -> str | None:
    """Return why a client's user cannot have this name, and what to do, None when it can."""
    if not user:
        return "Username must not be empty"
    if len(user) > MAX_USER_CHARS:
        return f"the name of a user has {len(user)} characters; at most {MAX_USER_CHARS} are allowed"
    if not user.isprintable():
        return "the name of a user holds characters that cannot be printed; leave them out"
    if is_reserved_user(user):
        return f"the names {RESERVED_USERS} are those of the brokers; choose another name than {user}"
    return None
