"""How text that another party chose is shown: control characters are escaped.

Names of groups and clients, settings, keys and records may hold any character. Written to a terminal as they are, they
can move the cursor, change colours, clear the screen or turn the direction of the text (U+202E). They can also begin a
line that looks like a line of the log. :func:`printable` is the only place that escapes them. The formatter of logs,
the tables and messages of the commands, and the texts of errors use it.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from typing import Final

# Control characters, invisible marks of format, lone surrogates, separators of lines and paragraphs.
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with each control character as Python writes it in a string: ``\x1b``, ``\n``, ``\u202e``.

    Characters in ``keep`` stay. A backslash stays as it is, so what is shown is for reading, not for reading back.
    """
    # True for nearly all texts, and fast.
    if text.isprintable():
        return text
    return "".join(each if each in keep or each.isprintable() else _shown(each) for each in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines with the control characters of each line escaped."""
    return printable(text, keep="\n\t")


def printable_json(text: str) -> str:
    """Return JSON on one line with control characters in its strings escaped; it still means the same."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or _shown(each) == each else _in_json(each) for each in text)


def _in_json(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(data[at : at + 2]):04x}" for at in range(0, len(data), 2))


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _ESCAPED:
        return character
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def first_of(items: Sequence[object], most: int, what: str = "") -> str:
    """Return the first items with commas, and how many more there are, of ``what``: ``a, b and 5 more files``."""
    more = f" and {len(items) - most} more {what}".rstrip() if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


class PrintableFormatter(logging.Formatter):
    """Formats a record as one line without control characters; a traceback below it keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: logging._SysExcInfoType) -> str:  # noqa: N802
        return printable_lines(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return printable_lines(super().formatStack(stack_info))
