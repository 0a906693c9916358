"""Reading until enough has come: what a client's poll returns, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tests.patience import wait_until

T = TypeVar("T")


def collected(poll: Callable[[], Iterable[T] | None], count: int, found: list[T] | None = None) -> list[T]:
    """Call ``poll``, which waits a while itself, until ``count`` have come with those in ``found``; return all."""
    taken: list[T] = [] if found is None else found

    def have_come() -> bool:
        if len(taken) < count:
            taken.extend(poll() or ())
        return len(taken) >= count

    wait_until(have_come, lambda: f"{count} to be read, of which {len(taken)} came", poll_s=0)
    return taken
