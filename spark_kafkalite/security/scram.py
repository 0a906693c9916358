"""SCRAM, both sides, for SHA-256 and SHA-512: RFC 5802 and RFC 7677 as Apache Kafka speaks them. Bytes in, bytes out.

    client   n,[a=AUTHZID],n=USER,r=NONCE[,tokenauth=true]
    server   r=NONCE MORE,s=SALT,i=ITERATIONS
    client   c=biws,r=NONCE MORE,p=PROOF
    server   v=SIGNATURE            or    e=REASON

Neither side learns the password from the other, and the client knows from the signature that the server holds the
user's record. There is no channel binding. The password's bytes are its UTF-8 form: Kafka prepares it no further
(RFC 5802 asks for SASLprep). With ``tokenauth`` the user is the id of a delegation token, and its HMAC the password.

Source: org.apache.kafka.common.security.scram.internals. Stricter than Kafka: nonces must be equal and not only end
alike (CVE-2024-56128), ``c=`` must repeat the client's first message, base64 is strict, and a client bounds the
iterations that a server can make it do.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from spark_kafkalite.errors import SaslAuthenticationFailed

# Mechanism to the name of its hash function.
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

MIN_ITERATIONS: Final = 4096
# A quarter of a second of SHA-256. Without a bound a server stops its clients for as long as it likes (CVE-2026-10143).
MAX_ITERATIONS: Final = 1_000_000

# Of a new credential. Source: org.apache.kafka.common.security.scram.internals.ScramMechanism.
MOST_STORED_ITERATIONS: Final = 16_384
# As the requests of the administrator number the mechanisms.
SCRAM_TYPES: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}

_LONGEST_MESSAGE: Final = 64 * 1024
# Source: org.apache.kafka.common.security.scram.internals.ScramFormatter.secureRandomString.
_SALT_BITS: Final = 130
_BASE_36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
# Attributes that the RFC does not know are passed over; m= asks for something that must not be.
_EXTENSIONS: Final = r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*)"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>[^,\0]+))?,)(?P<bare>n=(?P<user>[^,\0]+),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>[^,]+),i=(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<bare>c=(?P<binding>[^,]+),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>[^,]+)"
)
_SERVER_FINAL: Final = re.compile(rf"(?:v=(?P<signature>[^,]+)|e=(?P<error>[^,\0]+)){_EXTENSIONS}")


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps of a user's password; anyone with it can pose as the server, not as the user.

    ``other`` is the record of a second password that is accepted as well, while the user's password is being changed.
    Its salt and iterations must be the same: the server sends these before it knows which password the client has.
    """

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    other: ScramCredential | None = field(default=None, repr=False)


def scram_credential(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Return the record of a password."""
    return credential_of_salted(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def credential_of_salted(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the record of a password of which only the salted form (RFC 5802: SaltedPassword) is known."""
    hash_name = SCRAM_HASHES[mechanism]
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(hash_name, hmac.digest(salted_password, b"Client Key", hash_name)).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", hash_name),
    )


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted form of a password, as a client sends it to have it stored (API 51)."""
    return _salted_password(SCRAM_HASHES[mechanism], password.encode(), salt, iterations)


def new_salt() -> bytes:
    """Return a random salt in the form that Kafka's tools give it: a number of 130 bits in base 36."""
    return _salt_text(secrets.randbits(_SALT_BITS))


def _salt_text(number: int) -> bytes:
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_BASE_36[digit])
    return "".join(reversed(digits)).encode()


def decoy_credential(mechanism: str, user: str, secret: bytes) -> ScramCredential:
    """Return a record for a user that does not exist, with always the same salt: no password fits it.

    With it a server answers an unknown user as it does a known one: the salt has the form that Kafka's tools and ours
    choose, and the iterations are their default. ``secret`` is the server's.
    """
    digest = hmac.digest(secret, f"{mechanism}\0{user}".encode(), "sha512")
    size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    salt = _salt_text(int.from_bytes(digest) >> (512 - _SALT_BITS))
    return ScramCredential(salt, MIN_ITERATIONS, stored_key=secrets.token_bytes(size), server_key=digest[:size])


def credential_text(credential: ScramCredential) -> str:
    """Return a record as Apache Kafka writes it into a user's node of the registry."""
    parts = (
        ("salt", _encoded(credential.salt)),
        ("stored_key", _encoded(credential.stored_key)),
        ("server_key", _encoded(credential.server_key)),
        ("iterations", str(credential.iterations)),
    )
    return ",".join(f"{name}={value}" for name, value in parts)


def read_credential(mechanism: str, text: str) -> ScramCredential:
    """Return the record in a text of :func:`credential_text`'s form. Raises ValueError without the text.

    Source: org.apache.kafka.common.security.scram.internals.ScramCredentialUtils.
    """
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        salt, stored_key, server_key = (
            base64.b64decode(parts[name].encode(), validate=True) for name in ("salt", "stored_key", "server_key")
        )
        iterations = int(parts["iterations"])
    except (KeyError, ValueError):
        # Not with the text, which is as good as a password to a server's impersonator.
        raise ValueError(f"the credential of {mechanism} is not of Kafka's form") from None
    size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    if not salt or len(stored_key) != size or len(server_key) != size:
        raise ValueError(f"the credential of {mechanism} has keys of another length than {size} bytes, or no salt")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"the credential of {mechanism} has {iterations} iterations")
    return ScramCredential(salt, iterations, stored_key, server_key)


class ScramClient:
    """The client's side of one exchange."""

    def __init__(
        self,
        mechanism: str,
        user: str,
        password: str,
        *,
        is_token: bool = False,
        remedy: str = "check the user name and the password",
        nonce: str | None = None,
        extensions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``is_token`` means that user and password are a delegation token's id and HMAC; ``nonce`` is for tests.

        ``extensions`` are sent in addition, and the proof covers them; a server that does not know them ignores
        them."""
        self.remedy = remedy
        self._hash_name = SCRAM_HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={self._nonce}" + (",tokenauth=true" if is_token else "")
        self._first_bare += "".join(f",{name}={value}" for name, value in extensions.items())
        self._signature: bytes | None = None
        self._is_over = False

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._first_bare}".encode()

    def refused(self) -> None:
        """Keep nothing to forget."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the proof to the server's first message, None to its last one.

        Raises SaslAuthenticationFailed for a message that is not of the form, and for a server that does not prove that
        it knows the password.
        """
        if self._is_over:
            raise SaslAuthenticationFailed("SCRAM: the broker goes on after its last message")
        if self._signature is None:
            return self._proof(challenge)
        self._is_over = True
        final = _matched(_SERVER_FINAL, challenge, "the broker's last SCRAM message")
        if final["error"] is not None:
            raise SaslAuthenticationFailed(f"SCRAM: the broker refuses with {final['error'][:200]!r}; {self.remedy}")
        if not hmac.compare_digest(_decoded(final["signature"], "the broker's signature"), self._signature):
            raise SaslAuthenticationFailed(
                "SCRAM: the broker did not prove that it knows the password: it may be an impostor"
            )
        return None

    def _proof(self, challenge: bytes) -> bytes:
        server_first = _matched(_SERVER_FIRST, challenge, "the broker's first SCRAM message")
        nonce = server_first["nonce"]
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslAuthenticationFailed("SCRAM: the broker's nonce does not continue the client's")
        salt = _decoded(server_first["salt"], "the broker's salt")
        iterations = int(server_first["iterations"])
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise SaslAuthenticationFailed(
                f"SCRAM: the broker asks for {iterations} iterations; from {MIN_ITERATIONS} to {MAX_ITERATIONS} are "
                "allowed. Set the user's SCRAM credentials again"
            )
        final_bare = f"c=biws,r={nonce}"
        message = f"{self._first_bare},{server_first.string},{final_bare}".encode()
        salted = _salted_password(self._hash_name, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash_name)
        stored_key = hashlib.new(self._hash_name, client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, message, self._hash_name))
        server_key = hmac.digest(salted, b"Server Key", self._hash_name)
        self._signature = hmac.digest(server_key, message, self._hash_name)
        return f"{final_bare},p={_encoded(proof)}".encode()


class ScramServer:
    """The server's side of one exchange. ``user`` and ``is_token`` are known after the client's first message,
    ``proved`` is the record of the password that the client has proved to have.

    The client gets the same answer for every failure; the exception has the reason, for the server's own log.
    """

    refusal = ""
    lifetime_s = math.inf

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str, bool], ScramCredential | None],
        decoy_secret: bytes,
        *,
        nonce: str | None = None,
    ) -> None:
        """``find`` returns the record of a user, or of a delegation token (True), None when there is none."""
        self.user = ""
        self.is_token = False
        # What the client has said besides.
        self.extensions: dict[str, str] = {}
        self.proved: ScramCredential | None = None
        self._mechanism = mechanism
        self._hash_name = SCRAM_HASHES[mechanism]
        self._find = find
        self._decoy_secret = decoy_secret
        self._own_nonce = nonce or secrets.token_urlsafe(24)
        self._nonce = ""
        self._credential: ScramCredential | None = None
        self._gs2 = self._first_messages = b""
        self._is_over = False

    @property
    def is_done(self) -> bool:
        """Whether the client has authenticated."""
        return self.proved is not None

    def answer(self, message: bytes) -> bytes:
        """Return the server's reply to the client's message; ``is_done`` is then whether the client has authenticated.

        Raises SaslAuthenticationFailed for what is not of the form and for a proof that does not fit.
        """
        if self._is_over:
            raise SaslAuthenticationFailed("SCRAM: the client goes on after the end")
        self._is_over = True  # unless this step goes well
        if self._credential is None:
            answer = self._challenge(message)
            self._is_over = False
            return answer
        return self._verdict(message, self._credential)

    def _challenge(self, message: bytes) -> bytes:
        first = _matched(_CLIENT_FIRST, message, "the client's first SCRAM message")
        self.user = _unescaped(first["user"])
        if first["authzid"] is not None and _unescaped(first["authzid"]) != self.user:
            raise SaslAuthenticationFailed("SCRAM: a client may act only as its own user")
        said = (each.partition("=") for each in first["extensions"].split(",") if each)
        self.extensions = {name: value for name, _, value in said}
        self.is_token = "tokenauth=true" in first["extensions"].lower().split(",")
        # Also for a user that exists, whose challenge would otherwise come ten microseconds sooner.
        decoy = decoy_credential(self._mechanism, self.user, self._decoy_secret)
        credential = self._find(self.user, self.is_token) or decoy
        self._nonce = first["nonce"] + self._own_nonce
        answer = f"r={self._nonce},s={_encoded(credential.salt)},i={credential.iterations}".encode()
        self._credential = credential
        self._gs2 = first["gs2"].encode()
        self._first_messages = first["bare"].encode() + b"," + answer
        return answer

    def _verdict(self, message: bytes, credential: ScramCredential) -> bytes:
        final = _matched(_CLIENT_FINAL, message, "the client's last SCRAM message")
        if not hmac.compare_digest(final["nonce"], self._nonce):
            raise SaslAuthenticationFailed("SCRAM: the nonce is not this exchange's")
        if _decoded(final["binding"], "the channel binding") != self._gs2:
            raise SaslAuthenticationFailed("SCRAM: the channel binding differs from the client's first message")
        proof = _decoded(final["proof"], "the client's proof")
        if len(proof) != len(credential.stored_key):
            raise SaslAuthenticationFailed("SCRAM: the proof is not as long as the hash")
        signed = self._first_messages + b"," + final["bare"].encode()
        candidate: ScramCredential | None = credential
        while candidate is not None:
            client_key = _xor(proof, hmac.digest(candidate.stored_key, signed, self._hash_name))
            stored_key = hashlib.new(self._hash_name, client_key).digest()
            if hmac.compare_digest(stored_key, candidate.stored_key):
                self.proved = candidate
                return f"v={_encoded(hmac.digest(candidate.server_key, signed, self._hash_name))}".encode()
            candidate = candidate.other
        raise SaslAuthenticationFailed("SCRAM: the user does not exist or the password is wrong")


@functools.lru_cache(maxsize=64)
def _salted_password(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """The expensive step, milliseconds; kept, so that a client's further connections are free."""
    return hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)


def _matched(pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    """Return the parts of a message. Raises SaslAuthenticationFailed when it is not of the form."""
    try:
        text = message.decode() if len(message) <= _LONGEST_MESSAGE else ""
    except UnicodeDecodeError:
        text = ""
    match = pattern.fullmatch(text)
    if match is None or ",m=" in match["extensions"]:
        raise SaslAuthenticationFailed(f"{what} is not of the form that RFC 5802 gives it ({len(message)} bytes)")
    return match


def _unescaped(name: str) -> str:
    if re.search(r"=(?!2C|3D)", name):
        raise SaslAuthenticationFailed("SCRAM: a user name holds a '=' that is neither =2C nor =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise SaslAuthenticationFailed(f"SCRAM: {what} is not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))
