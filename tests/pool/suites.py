"""What a pool runs: suites of test files, and which of them a process takes up next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Suite:
    """Test folders, or files, that the same processes run: ``workers`` is how many do so at a time."""

    name: str
    folders: tuple[str, ...]
    without: tuple[str, ...] = ()
    workers: int = 2
    # So many processes more, which begin a file only while the processors have room for it.
    more: int = 0
    environment: str = ".venv"
    # pytest's -m.
    select: str = ""
    arguments: tuple[str, ...] = ()
    # Another suite runs the same files.
    is_second_run: bool = False
    # Its processes come before others at the processor: Spark gives its Python processes ten seconds to start, however
    # slow the host is.
    is_urgent: bool = False
    # Its tests use the outside parts, which then start while the first of them run.
    needs_parts: bool = False

    @property
    def prefix(self) -> str:
        """What stands before the names of its files in the table of costs."""
        return f"{self.name}:" if self.is_second_run else ""

    def files(self, root: Path) -> list[str]:
        """Return its test files, by their names in the project."""
        found = {
            str(path.relative_to(root))
            for folder in self.folders
            for path in ([root / folder] if folder.endswith(".py") else (root / folder).rglob("test_*.py"))
        }
        return sorted(name for name in found if not name.startswith(self.without))


@dataclass(frozen=True)
class Backlog:
    """What a suite has left to begin, in seconds and files, and how many processes run it already."""

    suite: Suite
    seconds: float
    files: int
    running: int

    @property
    def takes_another(self) -> bool:
        return self.running < min(self.suite.workers, self.files)


def most_behind(backlogs: Iterable[Backlog]) -> Suite | None:
    """Return the suite that a new process should run, None when no suite takes one.

    A suite that nobody runs comes first: it may be one that a single process has to run from its first file to its
    last. Of those, and then of the others, it is the one whose processes have the most before them.
    """
    behind = max(
        (each for each in backlogs if each.takes_another),
        key=lambda each: (each.running == 0, each.seconds / (each.running or each.suite.workers)),
        default=None,
    )
    return None if behind is None else behind.suite
