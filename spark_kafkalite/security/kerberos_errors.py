"""What errors of libkrb5 mean, and what to do about them: by their codes, which are the same in every language.

Source of the codes: krb5.h.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_kafkalite.printable import first_of
from spark_kafkalite.security.tokens import open_at_once

_BASE: Final = -1765328384
_NAME_EXPIRED, _CLIENT_UNKNOWN, _SERVICE_UNKNOWN = _BASE + 1, _BASE + 6, _BASE + 7
_ETYPE_REFUSED, _CLIENT_REVOKED, _KEY_EXPIRED, _PREAUTH_FAILED = _BASE + 14, _BASE + 18, _BASE + 23, _BASE + 24
TICKET_EXPIRED, _TICKET_NOT_YET_VALID, _SKEW = _BASE + 32, _BASE + 33, _BASE + 37
_MODIFIED, _WRONG_REALM = _BASE + 41, _BASE + 68
_CACHE_NOT_FOUND, _REPLY_MODIFIED, _REPLY_SKEW = -1765328243, -1765328237, -1765328236
_ETYPE_UNSUPPORTED, _REALM_UNKNOWN, _KDC_UNREACHABLE = -1765328234, -1765328230, -1765328228
_MUTUAL_FAILED, _KEYTAB_NOT_FOUND, NO_CREDENTIALS = -1765328226, -1765328203, -1765328189
_KDC_UNRESOLVED, _NO_DEFAULT_REALM, _CACHE_PERMISSION = -1765328164, -1765328160, -1765328190
_REPEATED, _NOT_US, _BAD_KEY_VERSION, _NO_KEY = _BASE + 34, _BASE + 35, _BASE + 44, _BASE + 45
_KEYTAB_FORMAT, _KEYTAB_VERSION, _BAD_INTEGRITY = -1765328149, -1765328171, _BASE + 31
_UNREADABLE: Final = (_KEYTAB_FORMAT, _KEYTAB_VERSION)
# Of libgssapi_krb5: a cache without tickets.
_EMPTY_CACHE: Final = 39756044
# Of libgssapi_krb5: a keytab without the service's key.
_NO_SERVICE_KEY: Final = 39756033
# A code of this package: the broker has sent bytes that are no token of Kerberos.
DEFECTIVE_TOKEN: Final = 1
_KEYTAB_V2: Final = b"\x05\x02"
_MOST_KEYTAB_BYTES: Final = 1 << 20
_MOST_INCLUDES: Final = 4
# Which files of a directory libkrb5 includes.
_INCLUDED: Final = re.compile(r"[A-Za-z0-9_-]+|[^.].*\.conf")
_MOST_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """What was asked for, as far as it is known, for the text of an error.

    ``service`` is ``kafka/HOST``, with ``@REALM`` where krb5.conf names the realm of the host.
    """

    principal: str | None = None
    keytab: str | None = None
    cache: str | None = None
    service: str | None = None

    @property
    def realm(self) -> str | None:
        """The client's realm, None when it is not known."""
        return self.principal.rpartition("@")[2] if self.principal and "@" in self.principal else default_realm()

    @property
    def realm_text(self) -> str:
        """The client's realm, for a text."""
        return f"the realm {self.realm}" if self.realm else "the default realm"

    @property
    def kdc(self) -> str:
        """The client's KDC, by its realm."""
        return f"the KDC of {self.realm}" if self.realm else "the KDC of the default realm"

    @property
    def asked(self) -> str:
        """The service that was asked for, with its realm."""
        service = str(self.service)
        return service if "@" in service or not self.realm else f"{service}@{self.realm}"

    @property
    def kdcs(self) -> str:
        """The addresses of the realm's KDCs."""
        found = list(kdcs_of(self.realm)) if self.realm else []
        return ", ".join(found) if found else "those that DNS names for the realm"

    def unanswered(self, wait_s: float) -> str:
        """Return the text for a KDC that has not answered in time."""
        return (
            f"no KDC of {self.realm_text} has answered within {wait_s:.0f} s ({self.kdcs}): check that they run and "
            "can be reached from this host (UDP and TCP), and [realms] in krb5.conf"
        )


def minor_code(code: int) -> int:
    """Return a minor status of GSSAPI, which is unsigned, as the code of libkrb5."""
    return code - 2**32 if code >= 2**31 else code


def says_kdc_is_away(code: int) -> bool:
    """Return whether a code means that no KDC can be reached."""
    return code in (_KDC_UNREACHABLE, _KDC_UNRESOLVED)


def explain(code: int, said: str, failure: Failure) -> str:
    """Return cause and remedy of an error of libkrb5. ``said`` is its own text."""
    who = failure.principal or "the principal of the ticket cache"
    cache = failure.cache or "the default ticket cache"
    own = f"Kerberos (SASL GSSAPI): {' '.join(said.split())[:300]}"
    if code in (NO_CREDENTIALS, _CACHE_NOT_FOUND, _EMPTY_CACHE, _CACHE_PERMISSION) and not failure.keytab:
        named = f" of {failure.principal}" if failure.principal else ""
        return (
            f"no Kerberos credentials: {cache} has no ticket{named} that can be read. Run kinit, or set "
            "sasl.kerberos.keytab and sasl.kerberos.principal. On an executor of Spark ship the keytab with "
            f"spark-submit --files; a ticket cache of the driver's host is not there ({own})"
        )
    if code == TICKET_EXPIRED and failure.keytab:
        return (
            f"the new ticket from {failure.keytab} has expired already by the clock of this host: run NTP on this host "
            f"and the KDC ({failure.kdcs})"
        )
    if code == TICKET_EXPIRED:
        return f"the Kerberos ticket in {cache} has expired: run kinit again, or use a keytab, which renews it"
    if code in (_SKEW, _REPLY_SKEW, _TICKET_NOT_YET_VALID):
        return (
            f"the clocks of this host, the KDC ({failure.kdcs}) and the broker differ by more than five minutes: run "
            f"NTP on all of them ({own})"
        )
    if code == _SERVICE_UNKNOWN:
        realm = failure.asked.rpartition("@")[2] if "@" in failure.asked else failure.realm
        if realm != failure.realm and failure.realm:
            return (
                f"the KDC of {failure.realm} has no key for the realm of {failure.asked}: let the two realms trust "
                f"each other (krbtgt/{realm}@{failure.realm}), or use a principal of {realm} ({own})"
            )
        return (
            f"{failure.kdc} does not know the service {failure.asked}: check sasl.kerberos.service.name and the "
            "broker's advertised host, for which the KDC must have a principal"
        )
    if code in (_CLIENT_UNKNOWN, _NAME_EXPIRED, _CLIENT_REVOKED, _KEY_EXPIRED):
        return f"{failure.kdc} does not accept {who}: the principal is unknown, expired or locked ({own})"
    if says_kdc_is_away(code):
        return (
            f"no KDC of {failure.realm_text} can be reached ({failure.kdcs}): check that they run, the network, and "
            f"[realms] in krb5.conf ({own})"
        )
    if code in (_REALM_UNKNOWN, _WRONG_REALM, _NO_DEFAULT_REALM):
        service = f" or of {failure.service}" if failure.service else ""
        return (
            f"the realm of {who}{service} is not known: check [realms], [domain_realm] and default_realm in krb5.conf "
            f"(KRB5_CONFIG), and the realm in sasl.kerberos.principal ({own})"
        )
    if code in (_ETYPE_REFUSED, _ETYPE_UNSUPPORTED):
        return (
            f"no encryption type suits this host, the KDC and the keys of {who} and {failure.asked}: allow a newer "
            f"one, such as aes256-cts-hmac-sha1-96, or make the keytab again ({own})"
        )
    if code in (_PREAUTH_FAILED, _BAD_INTEGRITY) and failure.keytab:
        return (
            f"the KDC does not accept the key of {who} in the keytab {failure.keytab}: the key has been changed since; "
            "make the keytab again"
        )
    if code in (_KEYTAB_NOT_FOUND, NO_CREDENTIALS, _NO_SERVICE_KEY, *_UNREADABLE) and failure.keytab:
        names = sorted(set(principals_in(failure.keytab)))
        has = f"it has {first_of(names, _MOST_SHOWN)}" if names else "it has no keys, or is no keytab"
        return f"the keytab {failure.keytab} has no key of {who}: {has}"
    if code == DEFECTIVE_TOKEN:
        return (
            f"what answers did not authenticate as {failure.asked}: its bytes are no answer of Kerberos. Check that "
            f"the address is a broker's ({own})"
        )
    if code in (_MUTUAL_FAILED, _MODIFIED, _REPLY_MODIFIED):
        return (
            f"the broker did not authenticate as {failure.asked}: it has other keys than the KDC. Check that the "
            f"address is the broker's, and make its keytab again ({own})"
        )
    return f"{own}; asked for {failure.asked} as {who}" if failure.service else f"{own}; as {who}"


def explain_refusal(code: int, said: str) -> str:
    """Return cause and remedy of a client's request that a service does not accept. ``said`` is libkrb5's own text."""
    own = f"GSSAPI: {' '.join(said.split())[:300]}"
    if code in (_SKEW, _TICKET_NOT_YET_VALID):
        return f"{own}; the clocks of the client, the KDC and this host must agree to five minutes: run NTP"
    if code == TICKET_EXPIRED:
        return f"{own}; the client's ticket has expired"
    if code == _REPEATED:
        return f"{own}; the same request came before: another program repeats it, or hosts share a replay cache"
    if code in (_NOT_US, _BAD_KEY_VERSION, _NO_KEY, _BAD_INTEGRITY, _KEYTAB_NOT_FOUND):
        return (
            f"{own}; the ticket is for another service, or for another key than the keytab has: check the client's "
            "sasl.kerberos.service.name and the advertised host, and make the keytab again if the key has changed"
        )
    return own


# Files of Kerberos ----------------------------------------------------------------------------------------------------


def principals_in(keytab: str) -> Iterator[str]:
    """Yield the principals of a keytab (MIT's format, version 2); nothing for a file that is none.

    Of a very long one those in its first megabyte.
    """
    try:
        with open(keytab, "rb", opener=open_at_once) as file:
            data = file.read(_MOST_KEYTAB_BYTES) or b""
    except OSError:
        return
    if data[:2] != _KEYTAB_V2:
        return
    at = 2
    try:
        while at + 4 <= len(data):
            (size,) = struct.unpack_from(">i", data, at)
            at += 4
            if 0 < size <= len(data) - at:
                yield _principal_at(data, at)
            at += abs(size)
    except (struct.error, UnicodeDecodeError):
        return


def _principal_at(data: bytes, at: int) -> str:
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    parts = []
    for _ in range(count + 1):
        (size,) = struct.unpack_from(">H", data, at)
        parts.append(data[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return "/".join(parts[1:]) + "@" + parts[0]


def _krb5_conf() -> str:
    """Return the text of the host's krb5.conf, with the files that it includes."""
    paths = os.environ.get("KRB5_CONFIG", "/etc/krb5.conf").split(":")
    return "\n".join(text for path in paths for text in _texts(Path(path), _MOST_INCLUDES))


def _texts(path: Path, depth: int) -> Iterator[str]:
    """Yield the texts of a file of libkrb5's profile and of those that it includes. Source: krb5.conf(5), Structure."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    yield text
    for kind, name in re.findall(r"(?m)^(include|includedir)\s+(\S+)", text) if depth else ():
        found = [Path(name)]
        if kind == "includedir":
            with contextlib.suppress(OSError):
                found = [each for each in sorted(Path(name).iterdir()) if _INCLUDED.fullmatch(each.name)]
        for each in found:
            yield from _texts(each, depth - 1)


def default_realm() -> str | None:
    """Return default_realm of krb5.conf, None if it has none."""
    found = re.search(r"(?m)^\s*default_realm\s*=\s*(\S+)", _krb5_conf())
    return found.group(1) if found else None


def kdcs_of(realm: str) -> Iterator[str]:
    """Yield the addresses of the KDCs that krb5.conf names for a realm."""
    text = _krb5_conf()
    for start in re.finditer(rf"(?m)^\s*{re.escape(realm)}\s*=\s*\{{", text):
        depth, end = 1, start.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield from re.findall(r"\bkdc\s*=\s*([^\s}]+)", text[start.end() : end])
