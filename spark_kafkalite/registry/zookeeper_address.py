"""Where a broker's registry is when it is elsewhere, and how the broker is known there: the settings ``zookeeper.*``.

Pure, and does not load kazoo: most brokers have a registry of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import REDACTED
from spark_kafkalite.registry.store import BadArguments, check_path

CONNECT: Final = "zookeeper.connect"
DIGEST: Final = "zookeeper.digest"
SET_ACL: Final = "zookeeper.set.acl"
SASL: Final = "zookeeper.sasl.mechanism"
DIGEST_MD5: Final = "DIGEST-MD5"
GSSAPI: Final = "GSSAPI"
SASL_MECHANISMS: Final = (DIGEST_MD5, GSSAPI)

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s,]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """A checked address. ``digest`` is the ``user:password`` of this client, None: none; ``sasl`` the mechanism of SASL
    by which it authenticates instead of the scheme digest. ``set_acl``: whether what is created may be changed by this
    user alone."""

    connect: str
    session_timeout_ms: int
    connection_timeout_ms: int
    digest: str | None = field(default=None, repr=False)
    set_acl: bool = False
    sasl: str | None = None

    @property
    def auth(self) -> tuple[str, str] | None:
        """The scheme or mechanism, and the credential of a session; None for one that does not authenticate."""
        return auth_of(self.sasl, self.digest)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ZooKeeperAddress | None:
        """Return the address that a broker's settings name, None when the registry is its own. Raises ConfigError."""
        connect, digest, set_acl, sasl = values[CONNECT], values[DIGEST], values[SET_ACL], values.get(SASL)
        if connect is None:
            given_ones = (
                (DIGEST, digest is not None, REDACTED),
                (SET_ACL, set_acl, "true"),
                (SASL, sasl is not None, sasl),
            )
            for name, given, shown in given_ones:
                if given:
                    raise ConfigError(
                        f"{name}={shown}: there is no {CONNECT} that it would be for; set that, too, or leave this out"
                    )
            return None
        _check_connect(connect)
        if digest is not None and not all(digest.partition(":")):
            raise ConfigError(f"{DIGEST}={REDACTED}: not of the form USER:PASSWORD")
        check_sasl(sasl, digest)
        if set_acl and auth_of(sasl, digest) is None:
            raise ConfigError(
                f"{SET_ACL}=true: needs {DIGEST}=USER:PASSWORD or {SASL}={GSSAPI}; only that user may then change nodes"
            )
        session_timeout_ms = values["zookeeper.session.timeout.ms"]
        connection_timeout_ms = values["zookeeper.connection.timeout.ms"]
        return cls(
            connect,
            session_timeout_ms,
            session_timeout_ms if connection_timeout_ms is None else connection_timeout_ms,
            digest,
            set_acl,
            sasl,
        )


def auth_of(sasl: str | None, digest: str | None) -> tuple[str, str] | None:
    """Return the scheme or mechanism, and the credential; None for a session that does not authenticate."""
    if sasl == GSSAPI:
        return GSSAPI, ""
    return None if digest is None else (sasl or "digest", digest)


def check_sasl(sasl: str | None, digest: str | None) -> None:
    """Raise ConfigError for a mechanism without its credential, or with one that it does not use."""
    if sasl == DIGEST_MD5 and digest is None:
        raise ConfigError(f"{SASL}={sasl}: needs {DIGEST}=USER:PASSWORD")
    if sasl == GSSAPI and digest is not None:
        raise ConfigError(
            f"{DIGEST}={REDACTED}: without effect with {SASL}={sasl}, which uses the ticket cache (KRB5CCNAME) or the "
            "keytab of KRB5_CLIENT_KTNAME: remove one of both"
        )


def _check_connect(connect: str) -> None:
    servers, slash, chroot = connect.partition("/")
    for server in servers.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match[2]) <= 65535:
            raise ConfigError(f"{CONNECT}={connect}: not of the form HOST:PORT,...[/CHROOT] (an IPv6 host in brackets)")
    try:
        check_path(slash + chroot or "/")
    except BadArguments as error:
        raise ConfigError(f"{CONNECT}={connect}: {error}") from error
