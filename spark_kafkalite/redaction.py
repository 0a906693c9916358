"""What may be shown of settings: the one place that distinguishes a secret from a value that helps its reader.

Error texts, warnings, Spark's conditions, the command line and the texts of objects all ask here. A value is hidden
when its name is that of a secret, or when it looks like one whatever its name: a JAAS line under a misspelt name, a
private key, a bearer token. A declared setting of the kind ``password`` is hidden before anything asks here. The rules
are those of Spark (``spark.redaction.regex``, and the one for JAAS lines in its Kafka connector) and some more. In
doubt a value is hidden. Its name stays, so that the reader knows what to check.

Where something *is* (a file, a URL, a callable) is no secret, and an error that hides it cannot be acted on: paths such
as ``/run/secrets/client.jks`` are shown.
"""

from __future__ import annotations

import re
from typing import Any, Final

# As org.apache.spark.util.Utils has it, so that people know what they see.
REDACTED: Final = "*********(redacted)"
_LONGEST_VALUE: Final = 300

# The patterns are texts, which re compiles when they are first needed: most processes show no setting at all.
_SECRET_NAME: Final = (
    r"(?i)pas+w|passphrase|pwd|secret|token|jaas|credential|hmac|digest|private[._-]?key|access[._-]?key|api[._-]?key"
    r"|authorization|(^|\.)ssl\..*(key|certificate)"
)
# Names that say where something is, or how to deal with it, and not what it is.
_PLACE_NAME: Final = (
    r"(?i)[._-]?(location|files?|path|dir|url|uri|provider|module|type|algorithm|class|mechanism|name|username|client[._-]id"
    r"|scope|ms|seconds|bytes|factor|jitter|enabled|urlencode|retries)$"
)
# What is a secret whatever its name is: key material, tokens, and anything that is being given a password.
_FLAGS: Final = re.IGNORECASE | re.VERBOSE
_KEY_OR_TOKEN: Final = r"""-----BEGIN\s
    |\beyJ[\w-]{8,}\.                                       # a JWT: base64 of '{"', and a dot behind the header
    |\b[\w-]{22}:[A-Za-z0-9+/]{40,}={0,2}                   # a delegation token: its id and its HMAC
    |loginmodule\s+\w+\s+\w                                 # a JAAS entry
    """
_SECRET_VALUE: Final = rf"""{_KEY_OR_TOKEN}
    |\bbearer\s+[\w.~+/-]{{4}}
    |tokenauth
    |(passw(or)?d|passphrase|secret|token|hmac|credentials?|access[._-]?key|private[._-]?key)["']?\s*[=:]\s*["']?[^\s"']
    |://[^/\s:@]*:[^/\s@]+@                                 # https://user:password@host
    """
# A word that makes a value suspicious, unless its name is that of a place.
_SECRET_WORD: Final = r"(?i)passw(or)?d|secret|hmac|access[._-]?key|-----BEGIN"


def is_secret(name: str, value: str = "") -> bool:
    """Return whether ``value``, given under ``name``, must not be shown. ``name`` may be empty for text without one."""
    if re.search(_SECRET_VALUE, value, _FLAGS):
        return True
    if re.search(_PLACE_NAME, name):
        return False
    return bool(re.search(_SECRET_NAME, name) or re.search(_SECRET_WORD, value))


def is_key_or_token(value: str) -> bool:
    """Return whether ``value`` is unmistakably a private key, a certificate, a token or a JAAS entry."""
    return re.search(_KEY_OR_TOKEN, value, _FLAGS) is not None


def shown_value(name: str, value: object) -> str:
    """Return a value as it may be shown: secrets replaced, long ones cut, on one line."""
    text = str(value)
    return REDACTED if is_secret(name, text) else _shortened(text)


def shown_name(name: str) -> str:
    """Return an unknown name as it may be shown: the user may have put a secret in its place by mistake."""
    return REDACTED if re.search(_SECRET_VALUE, name, _FLAGS) else _shortened(name)


class ShownSettings(dict[str, Any]):
    """Settings by name, whose text hides secrets. Pickled and copied they keep their values."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{shown_name(name)!r}: {shown_value(name, value)!r}" for name, value in self.items())
        return f"{{{shown}}}"

    __str__ = __repr__


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_VALUE else f"{line[:_LONGEST_VALUE]}... ({len(text)} characters)"
