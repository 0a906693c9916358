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
    section = re.split(r"\n##+ ", _PAGE.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1])[0]
    (block,) = re.findall(r"(?ms)^```console\n(.*?)^```", section)
    return [line.removeprefix("$ ").partition("    #")[0].strip() for line in block.splitlines()]
