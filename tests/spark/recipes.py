"""The recipes of docs/spark.md, "Where Spark runs": their commands, and what runs those in a directory of a test.

``pip install`` is the one command that is not run as it stands: a test asks no registry, so :func:`install` gives an
environment the same distributions, with all that they depend on, out of the environment that the tests run in.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from spark_kafkalite.version import WHEEL

_PROJECT = Path(__file__).parent.parent.parent
_PAGE = _PROJECT / "docs" / "spark.md"
# Installed apart: see requirements-recipes.txt and requirements-pandas.txt.
APART = tuple(Path(sys.prefix) / name for name in ("recipes", "pandas"))

# Scripts, which are made anew; and what pyarrow and others bring for who builds and tests them: half of all files.
_NOT_COPIED = {"..", "__pycache__", "include", "tests"}


def commands(recipe: str) -> list[str]:
    """Return the commands of the recipe whose paragraph begins with this name in bold, without their prompts."""
    section = _PAGE.read_text().split("\n## Where Spark runs\n")[1].split("\n## ")[0]
    [text] = [part for part in re.split(r"^(?=\*\*)", section, flags=re.MULTILINE) if part.startswith(f"**{recipe}")]
    blocks = re.findall(r"^```console\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    found = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert found, f"the recipe {recipe} has no commands"
    return found


def plain_environment() -> dict[str, str]:
    """Return the environment variables without those that lead Spark or Python to the installation of the tests."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "PYTHON", "SPARK_")) and name != "MASTER"
    }
    return {**inherited, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(
    steps: Sequence[str], directory: Path, changes: Mapping[str, str], variables: Mapping[str, str] | None = None
) -> str:
    """Run commands one after the other, and return what the last one printed on standard output.

    ``changes`` are the page's addresses and paths with those of the test, ``variables`` more for the environment.
    """
    environment = plain_environment() | dict(variables or {})
    printed = ""
    for command in steps:
        for old, new in changes.items():
            command = command.replace(old, new)
        words = shlex.split(command, comments=True)
        if words[0].endswith("/bin/pip") and words[1] == "install":
            install(directory / Path(words[0]).parent.parent, *words[2:])
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr[-6000:]}"
        printed = done.stdout
    return printed


def install(environment: Path, *names: str) -> None:
    """Put distributions into a virtual environment, with all that they depend on."""
    [packages] = environment.glob("lib/python3*/site-packages")
    wanted, done = [Requirement("spark-kafkalite" if name == WHEEL else name) for name in names], set()
    while wanted:
        requirement = wanted.pop()
        key = (requirement.name.lower().replace("_", "-"), frozenset(requirement.extras))
        if key in done:
            continue
        done.add(key)
        distribution = _distribution(requirement.name)
        _copy(distribution, packages)
        for each in map(Requirement, distribution.requires or ()):
            extras = requirement.extras or {""}
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(each)


def _distribution(name: str) -> metadata.Distribution:
    path = [*map(str, APART), *sys.path]
    found = next(iter(metadata.Distribution.discover(name=name, path=path)), None)
    assert found is not None, f"{name} is not installed here"
    return found


def _copy(distribution: metadata.Distribution, packages: Path) -> None:
    if distribution.name == "spark-kafkalite":
        # Installed in editable form, as a path to the checkout.
        for name in ("spark_kafkalite", "pyspark_kafkalite"):
            shutil.copytree(
                _PROJECT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyx", "*.pxi", "*.c")
            )
    for file in distribution.files or ():
        if _NOT_COPIED.intersection(file.parts) or file.name.startswith("__editable__"):
            continue
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            continue
        try:
            os.link(Path(str(distribution.locate_file(file))), target)
        except OSError:
            # On another file system.
            shutil.copyfile(Path(str(distribution.locate_file(file))), target)
    for entry in distribution.entry_points.select(group="console_scripts"):
        script = packages.parents[2] / "bin" / entry.name
        script.write_text(
            f"#!{packages.parents[2]}/bin/python\nimport sys\nfrom {entry.module} import {entry.attr}\n"
            f"sys.exit({entry.attr}())\n"
        )
        script.chmod(0o755)
