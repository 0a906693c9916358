"""The state of a process, and the processes below one, whatever sessions they have begun, as proc(5) shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Status(NamedTuple):
    """What /proc says of a process: ``state`` is its letter, ``used`` the ticks of its own and its ended children."""

    state: str
    parent: int
    used: int


def tree(root: int) -> dict[int, Status]:
    """Return a process and all processes below it, by their numbers; nothing once it has been waited for."""
    all_processes = {
        int(entry): status
        for entry in os.listdir("/proc")
        if entry.isdigit() and (status := status_of(int(entry))) is not None
    }
    return {number: status for number, status in all_processes.items() if _is_below(number, root, all_processes)}


def status_of(process: int) -> Status | None:
    """Return what /proc says of a process; None once it has been waited for, also in the middle of the look."""
    try:
        content = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before it may hold anything.
    fields = content.rpartition(")")[2].split()
    return Status(fields[0], int(fields[1]), sum(map(int, fields[11:15])))


def has_ended(process: int) -> bool:
    """Return whether no process of this number runs. One that nobody has waited for yet, a zombie, has ended."""
    status = status_of(process)
    return status is None or status.state in "ZX"


def _is_below(process: int, root: int, all_processes: Mapping[int, Status]) -> bool:
    while process != root and process in all_processes:
        process = all_processes[process].parent
    return process == root
