"""Which interpreters the project says it supports, and how `make test-pythons` finds them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.paths import PROJECT

SCRIPT = PROJECT / "scripts" / "check_prerequisites.sh"


def interpreter(directory: Path, name: str, answer: str, exit_code: int = 0) -> Path:
    """A program that gives an interpreter's answer to whatever it is asked."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{answer and f'echo {answer}'}\nexit {exit_code}\n")
    path.chmod(0o755)
    return path


def others(directory: Path, **environment: str) -> list[str]:
    own = directory / "own"
    interpreter(own, "python3.11", "3.11")
    for tool in ("sh", "grep"):
        found = shutil.which(tool)
        assert found is not None
        (own / tool).symlink_to(found)
    done = subprocess.run(
        [str(SCRIPT), "--others"],
        env={"PATH": f"{directory}/first:{own}", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_others_are_found_by_name_and_what_does_not_run_is_passed_by(tmp_path: Path) -> None:
    interpreter(tmp_path / "first", "python3.12", "", 127)
    found = interpreter(tmp_path / "first", "python3.13", "3.13")
    interpreter(tmp_path / "first", "python3.14", "3.14")
    assert others(tmp_path) == [str(found)]


def test_others_are_found_through_pyenv_where_the_name_is_only_a_shim(tmp_path: Path) -> None:
    interpreter(tmp_path / "first", "python3.12", "", 127)
    installed = interpreter(tmp_path / "versions" / "3.12.9" / "bin", "python", "3.12")
    pyenv = tmp_path / "first" / "pyenv"
    pyenv.write_text(f'#!/bin/sh\n[ "$1" = versions ] && echo 3.1.2 && echo 3.12.9 || echo {tmp_path}/versions/"$2"\n')
    pyenv.chmod(0o755)
    assert others(tmp_path) == [str(installed)]


def test_an_interpreter_without_the_lock_or_of_another_kind_does_not_count(tmp_path: Path) -> None:
    # They answer with nothing.
    interpreter(tmp_path / "first", "python3.13", "")
    assert others(tmp_path) == []


def test_others_can_be_named(tmp_path: Path) -> None:
    assert others(tmp_path, PYTHONS="one two") == ["one", "two"]


@pytest.mark.parametrize("file", ["README.md", "scripts/check_prerequisites.sh"])
def test_the_same_versions_are_named_everywhere(file: str) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)\b", "\n".join(project["classifiers"]))
    named = {
        "README.md": r"CPython ((?:3\.\d+(?:, | or )?)+)",
        "scripts/check_prerequisites.sh": r'TESTED="([^"]*)"',
    }
    match = re.search(named[file], (PROJECT / file).read_text())
    assert match is not None
    assert re.findall(r"3\.\d+", match[1]) == versions
    assert project["requires-python"] == f">={versions[0]}"
