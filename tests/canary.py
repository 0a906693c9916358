"""Secrets that are known, and the search for them: in texts, exceptions, objects, files and command lines of processes.

A test gives :data:`SECRETS` to whatever takes settings, and then looks where nothing of them may be. A secret is also
looked for as base64, URL-encoded and in hexadecimal, since a token or an authorization header is one of these.
"""

from __future__ import annotations

import base64
import gc
import gzip
import os
import traceback
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Nothing else is likely to contain it, and it has characters that escaping changes.
_WORD = "cAnArY7f3b91"
PASSWORD = f"{_WORD}-pw/+=%"
CLIENT_SECRET = f"{_WORD}-client"
TOKEN = f"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ{_WORD}In0."
HMAC = f"{_WORD}HMAC{'x' * 60}=="
KEY = f"-----BEGIN PRIVATE KEY-----\nMII{_WORD}KEY\n-----END PRIVATE KEY-----\n"
PLAIN_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="alice" password="{PASSWORD}" serviceName="kafka";'
)
SCRAM_JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="alice" password="{PASSWORD}" tokenauth="true";'
)
OAUTH_JAAS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    f'clientId="alice" clientSecret="{CLIENT_SECRET}";'
)
# A text that is never to be seen, and values that hold it: whole secrets, and forms that errors like to quote.
SECRETS: Mapping[str, str] = {
    "password": PASSWORD,
    "client secret": CLIENT_SECRET,
    "token": TOKEN,
    "delegation token": f"abcdefghijklmnopqrstuv:{HMAC}",
    "key": KEY,
    "PLAIN JAAS line": PLAIN_JAAS,
    "SCRAM JAAS line": SCRAM_JAAS,
    "OAUTHBEARER JAAS line": OAUTH_JAAS,
    "broken JAAS line": PLAIN_JAAS.replace('"', ""),
    "half a JAAS line": PLAIN_JAAS[: PLAIN_JAAS.index(" serviceName") - 1],
}


def _forms() -> Iterator[bytes]:
    yield _WORD.encode()
    yield _WORD.encode().hex().encode()
    # Three alignments: the word may begin at any byte of a group of three.
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + _WORD.encode())
        yield encoded[4 if before else 0 : -4]
    yield urllib.parse.quote(_WORD).encode()
    yield _WORD.encode("utf-16-le")


FORMS = tuple(dict.fromkeys(_forms()))


def leaks(text: str | bytes) -> list[str]:
    """Return what of the secrets ``text`` shows, with what stands around it; nothing is what a test wants."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    found = []
    for form in FORMS:
        position = data.find(form)
        if position >= 0:
            found.append(data[max(0, position - 200) : position + 60].decode("utf-8", "replace"))
    return found


def exception_texts(error: BaseException) -> Iterator[str]:
    """Yield all that an exception and those behind it say; also of those whose display is suppressed."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield from (str(each), repr(each), repr(each.args), *getattr(each, "__notes__", ()))
        yield repr({name: value for name, value in vars(each).items() if name != "__notes__"})
        yield "".join(traceback.format_exception(each))
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def object_texts(*roots: object) -> Iterator[str]:
    """Yield the texts of objects of this project that can be reached from ``roots``, and of nothing else.

    A login holds a password; what matters is what is seen when it, or anything that holds it, is printed.
    """
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (type, str, bytes)) or callable(each):
            continue
        seen.add(id(each))
        ours = str(type(each).__module__).startswith("spark_kafkalite")
        if ours:
            yield from (repr(each), str(each))
        if ours or isinstance(each, (dict, list, tuple, set, frozenset)):
            waiting += gc.get_referents(each)
            waiting += [
                getattr(each, name, None) for kind in type(each).__mro__ for name in vars(kind).get("__slots__", ())
            ]


def file_leaks(root: Path, *, without: Iterable[Path] = ()) -> dict[str, list[str]]:
    """Return what the files below ``root`` show, by file. Files packed by gzip are looked into."""
    left_out = {path.resolve() for path in without}
    found: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if not path.is_file() or path.resolve() in left_out:
            continue
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        if shown := leaks(data):
            found[str(path.relative_to(root))] = shown
    return found


def command_lines(pid: int) -> dict[int, bytes]:
    """Return the command lines of a process and of all that it has started, with what they had in it by then."""
    parents: dict[int, int] = {}
    lines: dict[int, bytes] = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            number = int(directory.name)
            parents[number] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            lines[number] = (directory / "cmdline").read_bytes()
        except OSError:
            continue  # It has ended.
    found = {}
    for number, line in lines.items():
        ancestor = number
        while ancestor not in (0, pid):
            ancestor = parents.get(ancestor, 0)
        if ancestor == pid and number != os.getpid():
            found[number] = line
    return found
