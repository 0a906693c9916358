"""The last release as programs to run: its sources from its commit, with the kernel built."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.environments import git, hasty_compiler, run
from tests.paths import PROJECT

_RELEASES: Final[dict[str, str | None]] = json.loads((PROJECT / "tests" / "packaging" / "releases.json").read_text())


@dataclass(frozen=True)
class LastRelease:
    """A tree with the sources of the last release."""

    version: str
    tree: Path

    @property
    def prefix(self) -> tuple[str, ...]:
        """What before ``python -m spark_kafkalite.cli`` runs this release: in its tree Python finds it first."""
        return ("env", "-C", str(self.tree))

    def command(self, *arguments: str) -> str:
        """Run a command of this release and return what it printed."""
        return run(sys.executable, "-m", "spark_kafkalite.cli", *arguments, directory=self.tree)


def unpack(directory: Path) -> LastRelease:
    """Make a tree of the last release whose commit is known; skip where this clone has no such commit."""
    version, commit = next((version, commit) for version, commit in reversed(_RELEASES.items()) if commit is not None)
    if git("cat-file", "-t", commit) != "commit":
        pytest.skip(f"this clone lacks the commit {commit} of release {version}: git fetch --unshallow")
    archive = directory / "release.tar"
    run("git", "archive", "-o", archive, commit, directory=PROJECT)
    tree = directory / "release"
    tree.mkdir()
    run("tar", "-x", "-f", archive, directory=tree)
    compiler = {"CC": str(hasty_compiler(directory))}
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", directory=tree, environment=compiler)
    return LastRelease(version, tree)
