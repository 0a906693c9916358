"""Running commands outside the checkout, and empty environments to install a distribution into."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.paths import PROJECT
from tests.patience import PATIENCE_S


def run(*command: str | Path, directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command outside the checkout and return all that it printed; a failure shows it."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONASYNCIODEBUG")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**inherited, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=10 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def git(*arguments: str) -> str | None:
    """Return what git prints; None where it fails, as for a commit or a tag that this clone does not have."""
    done = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds one built distribution and sees the dependencies, but not the checkout."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def run_python(self, program: str, *arguments: str, **variables: str) -> str:
        """Run a program in a directory of the environment's own and return what it printed."""
        return run(self.python, "-c", program, *arguments, directory=self.path, environment=variables)

    def run_script(self, name: str, *arguments: str, **variables: str) -> str:
        """Run one of the installed commands."""
        return run(self.path / "bin" / name, *arguments, directory=self.path, environment=variables)


def hasty_compiler(directory: Path) -> Path:
    """Make the C compiler without its optimization, which takes most of a build. The checkout's kernel is built with
    it."""
    script = directory / "cc"
    script.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    script.chmod(0o755)
    return script


def make_environment(path: Path, wheel: Path) -> Environment:
    """Make an environment outside the checkout with the wheel in it.

    The dependencies are those of this test run, by a path entry: Python reads no path files in such a directory, so the
    editable install of the checkout, which is one, does not come along.
    """
    run(sys.executable, "-m", "venv", "--without-pip", path, directory=path.parent)
    environment = Environment(path)
    run(
        sys.executable, "-m", "pip", "--python", environment.python, "install",
        # Each module is compiled when it is first imported, and most never are.
        "--no-deps", "--no-index", "--no-compile", wheel,
        directory=path.parent,
    )  # fmt: skip
    version = sysconfig.get_python_version()
    packages = path / "lib" / f"python{version}" / "site-packages"
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return environment
