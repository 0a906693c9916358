"""The commands of a section of docs/operations.md, for tests that run them."""

from __future__ import annotations

import re
from typing import Final

from tests.paths import PROJECT

START: Final = "kafkalite broker --config broker.properties"
STATUS: Final = "kafkalite cluster status"
_PAGE: Final = PROJECT / "docs" / "operations.md"


def commands_of(heading: str) -> list[str]:
    """Return the commands of a section of the third level, without their comments."""
    (block,) = blocks_of(heading)
    return [command for command, _ in block]


def blocks_of(heading: str) -> list[list[tuple[str, str]]]:
    """Return the blocks of a section of the second or third level: each command, and its comment or an empty text."""
    section = re.split(r"\n##+ ", re.split(rf"\n###? {re.escape(heading)}\n", _PAGE.read_text(encoding="utf-8"))[1])[0]
    found = []
    for block in re.findall(r"(?ms)^ *```console\n(.*?)^ *```", section):
        lines = [line.strip().removeprefix("$ ").partition("    #") for line in block.splitlines()]
        found.append([(command.strip(), comment.strip()) for command, _, comment in lines])
    return found
