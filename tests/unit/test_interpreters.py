"""Which interpreters the project says it supports, and how `make test-pythons` finds them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
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


def taken(*directories: Path, **environment: str) -> str:
    path = ":".join(map(str, directories))
    done = subprocess.run(["/bin/sh", str(SCRIPT), "--python"], env={"PATH": path, **environment}, capture_output=True)
    return done.stdout.decode().strip()


def built(directory: Path, name: str, *, optimized: bool) -> Path:
    """A program that answers what is asked of it as an interpreter with or without optimizations would."""
    directory.mkdir(parents=True)
    path = directory / name
    path.write_text(f'#!/bin/sh\ncase "$2" in *CONFIG_ARGS*) exit {int(not optimized)};; esac\necho 3.12\n')
    path.chmod(0o755)
    return path


def test_an_optimized_interpreter_is_taken_before_one_that_is_earlier_on_the_path(tmp_path: Path) -> None:
    plain = built(tmp_path / "a", "python3.11", optimized=False)
    default = built(tmp_path / "d", "python3", optimized=True)
    newer = built(tmp_path / "b", "python3.12", optimized=True)
    assert taken(plain.parent, newer.parent) == str(plain)
    optimized = built(tmp_path / "c", "python3.11", optimized=True)
    assert taken(plain.parent, newer.parent, optimized.parent) == str(optimized)
    assert taken(default.parent, newer.parent, tmp_path / "none") == str(newer)
    assert taken(default.parent) == str(default)


def test_an_interpreter_that_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    plain = built(tmp_path / "a", "python3.11", optimized=False)
    optimized = built(tmp_path / "b", "python3.11", optimized=True)
    assert taken(plain.parent, optimized.parent, PYTHON="python3.11") == str(plain)
    assert taken(optimized.parent, PYTHON=str(plain)) == str(plain)


def test_whether_an_interpreter_is_optimized_is_asked_of_a_real_one() -> None:
    # What the question does not understand would count as "no" everywhere.
    question = re.search(r"'\n(import ensurepip.*?)'", SCRIPT.read_text(), re.DOTALL)
    assert question is not None
    done = subprocess.run([sys.executable, "-c", question[1]], capture_output=True, text=True)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


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
