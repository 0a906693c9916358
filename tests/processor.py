"""What a process has used of the processor: a bound on it holds however much else the machine does."""

from __future__ import annotations

import os
from pathlib import Path


def used_s(pid: int) -> float:
    """Return the processor time of a process so far, its threads' and the kernel's for it, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
