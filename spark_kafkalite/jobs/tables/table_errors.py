"""The error of a table, and the commands that its messages recommend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_kafkalite.errors import KafkaliteError

# Problems that a message names; it counts the others.
NAMED_AT_MOST: Final = 5


class TableError(KafkaliteError):
    """A table contradicts its manifests, or cannot take what a run would publish."""


def resync_command(root: str, topic: str) -> str:
    """Return the command that makes a table again from the manifests."""
    return f"kafkalite jobs run hadoop_load --recover --table-resync --topic {topic} --destination {root}"


def some_of(problems: Sequence[str]) -> str:
    """Return the first problems of a list, and the number of the others."""
    more = f", and {len(problems) - NAMED_AT_MOST} more" if len(problems) > NAMED_AT_MOST else ""
    return f"{'; '.join(problems[:NAMED_AT_MOST])}{more}"
