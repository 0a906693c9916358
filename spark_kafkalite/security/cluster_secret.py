"""The cluster secret, by which brokers prove to each other that they belong to one cluster (SCRAM-SHA-256). Pure.

A broker N is the user ``broker-N``, and the secret is every broker's password: anyone with the secret can act as any
broker. While the secret is being changed there are two. A broker uses the first one and accepts both, so the change
takes three steps, each on every broker before the next one: add the new one as the second, put it first, remove the old
one.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import replace
from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.scram import MIN_ITERATIONS, ScramClient, ScramCredential, ScramServer, scram_credential

MECHANISM: Final = "SCRAM-SHA-256"
# More than two secrets of any reasonable length.
LONGEST_SECRET_TEXT: Final = 4096

_SECRET_BYTES: Final = 32
_LEAST_CHARACTERS: Final = 32
_MOST_SECRETS: Final = 2
_SECRET_FORM: Final = re.compile(r"[\x21-\x7e]+")
# As Kafka writes numbers: no sign, no zeros in front.
_USER: Final = re.compile(r"broker-(0|[1-9][0-9]{0,9})")
# Rights of brokers hang on the session and not on the name. All the same no client may look like a broker in a log.
_RESERVED: Final = re.compile(r"broker-[0-9]+")
RESERVED_USERS: Final = "broker-NUMBER"
# What a broker says besides, in SCRAM's first message; one that does not know it passes over it.
_WIRE_VERSION: Final = "wire"
_VERSION_FORM: Final = re.compile(r"[0-9]{1,9}")
_MAX_BROKER_ID: Final = 2**31 - 1


def new_secret() -> str:
    """Return a new secret: 32 random bytes in 43 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()


def parse_secrets(text: str, source: str) -> tuple[str, ...]:
    """Return the one or two secrets of a text, each on a line of its own.

    ``source`` names where the text is from. Raises ConfigError, which shows none of the text.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    remedy = "kafkalite cluster new-secret prints a good one"
    if not lines:
        raise ConfigError(f"{source}: holds no secret; {remedy}")
    if len(lines) > _MOST_SECRETS:
        raise ConfigError(
            f"{source}: holds {len(lines)} lines; one secret is expected, or two while the secret is being changed"
        )
    for number, line in enumerate(lines, 1):
        if _SECRET_FORM.fullmatch(line) is None:
            raise ConfigError(
                f"{source}: the secret on line {number} holds blanks or characters beyond ASCII; {remedy}"
            )
        if len(line) < _LEAST_CHARACTERS:
            raise ConfigError(
                f"{source}: the secret on line {number} has {len(line)} characters, at least {_LEAST_CHARACTERS} are "
                f"needed; {remedy}"
            )
    # The same twice is one.
    return tuple(dict.fromkeys(lines))


def broker_user(broker_id: int) -> str:
    """Return the user that a broker is."""
    return f"broker-{broker_id}"


def broker_of_user(user: str) -> int | None:
    """Return the broker that a user name stands for, None for another user."""
    match = _USER.fullmatch(user)
    if match is None or int(match[1]) > _MAX_BROKER_ID:
        return None
    return int(match[1])


def is_reserved_user(user: str) -> bool:
    """Return whether a name is kept for brokers, so that no client's user may have it."""
    return _RESERVED.fullmatch(user) is not None


class ClusterSecret:
    """The secret, or both, as a broker uses and accepts them. Never shown."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        """``texts`` are one secret or two, as :func:`parse_secrets` gives them."""
        self._texts = texts
        # All users have the same salt, existing or not: nobody learns from it, or from the time taken, who exists.
        salt = secrets.token_bytes(16)
        self._decoy_secret = secrets.token_bytes(32)
        self._accepted: ScramCredential | None = None
        self._decoy: ScramCredential | None = None
        self._fingerprints: dict[ScramCredential, bytes] = {}
        for text in reversed(texts):
            real = scram_credential(MECHANISM, text, salt, MIN_ITERATIONS)
            decoy = scram_credential(MECHANISM, new_secret(), salt, MIN_ITERATIONS)
            self._accepted = replace(real, other=self._accepted)
            self._decoy = replace(decoy, other=self._decoy)
            self._fingerprints[self._accepted] = hashlib.sha256(text.encode()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSecret) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(self._texts)

    def client(self, broker_id: int, remedy: str, wire_version: int) -> ScramClient:
        """Return broker N's side of one exchange; ``remedy`` is what to check when it is refused.

        Together with its proof it sends its version of the inner wire.
        """
        said = {_WIRE_VERSION: str(wire_version)}
        return ScramClient(MECHANISM, broker_user(broker_id), self._texts[0], remedy=remedy, extensions=said)

    def server(self) -> ScramServer:
        """Return the server's side of one exchange, in which a broker authenticates."""
        return ScramServer(MECHANISM, self._credential, self._decoy_secret)

    def credential_of(self, user: str) -> ScramCredential | None:
        """Return the record by which a user authenticates as a broker, None for a user that is no broker."""
        return None if broker_of_user(user) is None else self._accepted

    def fingerprint_of(self, server: ScramServer) -> bytes | None:
        """Return what stands for the secret that the client of a finished exchange has proved to know.

        None when the exchange was begun with another object than this, which may not accept that secret.
        """
        return None if server.proved is None else self._fingerprints.get(server.proved)

    @staticmethod
    def wire_version_of(server: ScramServer) -> int | None:
        """Return the version of the inner wire that the client of an exchange sent, None when it sent none."""
        said = server.extensions.get(_WIRE_VERSION, "")
        return int(said) if _VERSION_FORM.fullmatch(said) else None

    def accepts(self, fingerprint: bytes) -> bool:
        """Whether the secret that a fingerprint stands for is one of these."""
        return fingerprint in self._fingerprints.values()

    def _credential(self, user: str, is_token: bool) -> ScramCredential | None:
        return self._decoy if is_token or broker_of_user(user) is None else self._accepted
