"""The processes below one, whatever sessions they have begun, as proc(5) shows them."""

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
    all_processes = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                content = Path(f"/proc/{entry}/stat").read_text(encoding="ascii", errors="replace")
            except OSError:
                continue  # it has just ended
            # The name before it may hold anything.
            fields = content.rpartition(")")[2].split()
            all_processes[int(entry)] = Status(fields[0], int(fields[1]), sum(map(int, fields[11:15])))
    return {number: status for number, status in all_processes.items() if _is_below(number, root, all_processes)}


def _is_below(process: int, root: int, all_processes: Mapping[int, Status]) -> bool:
    while process != root and process in all_processes:
        process = all_processes[process].parent
    return process == root
