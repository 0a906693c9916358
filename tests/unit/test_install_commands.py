"""No instruction installs the package by its name, which is on no package index: neither a page nor a message does.

An index would answer with nothing, or with the package of a stranger.
"""

from __future__ import annotations

import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

from spark_kafkalite import version
from tests.paths import PROJECT
from tests.unit.test_docs import PAGES, tracked_files

# A command up to its end: that of the code span, or of the line.
COMMAND = re.compile(
    r"\b(?:pip3?|pipx|uv|uvx|conda|poetry)\b[^`\n;&#]{0,40}?\b(?:install|download|wheel|add|run)\b[^`\n;&#]*"
)
SPLICE = re.compile(r"""["'][ ]*\n[ ]*f?["']""")
BY_NAME = re.compile(r"(?<![\w/.-])spark[-_]kafkalite(?![\w/.]|-\d)", re.IGNORECASE)
# Square brackets behind the name are of use to an installer only; only pyproject.toml itself may have them.
EXTRA = re.compile(r"\bspark[-_]kafkalite\[", re.IGNORECASE)
# "Install spark-kafkalite there", in whatever words the installer follows.
PROSE = re.compile(r"\binstall spark[-_]kafkalite\b", re.IGNORECASE)


def installs_by_name(text: str) -> list[str]:
    """Return what in a text installs the package by its name."""
    joined = SPLICE.sub("", text).replace("\\\n", " ")
    commands = [
        found[0].strip()
        for found in COMMAND.finditer(joined)
        # Without an index, nothing but a directory of wheels is asked for the name.
        if BY_NAME.search(found[0]) and "--no-index" not in found[0]
    ]
    return commands + EXTRA.findall(joined) + PROSE.findall(joined)


@pytest.mark.parametrize(
    "text",
    [
        "pip install spark-kaf" + "kalite",
        "$ /opt/kafkalite/bin/pip install --no-cache-dir spark-kaf" + "kalite venv-pack",
        "install it with `pip install 'spark-kaf" + "kalite[spark]'`",
        '"run pip "\n        "install spark-kaf' + 'kalite==0.2.0"',
        "python -m pip install --upgrade \\\n    spark_kaf" + "kalite",
        "uv run --with x y; uv add spark-kaf" + "kalite",
        "install spark-kaf" + "kalite there with pip",
        "requires spark-kaf" + "kalite[avro]",
    ],
)
def test_an_install_by_name_is_found(text: str) -> None:
    assert installs_by_name(text)


@pytest.mark.parametrize(
    "text",
    [
        f"pip install {version.WHEEL}",
        f"pip install {version.WHEEL} 'pyspark>=4.0'",
        "pip install '.[spark]'",
        "pip install --no-index --find-links wheels spark-kaf" + "kalite",
        "After `pip install` Spark finds spark-kafkalite",
        "spark-kafkalite is installed without its native kernel",
    ],
)
def test_other_commands_are_not(text: str) -> None:
    assert installs_by_name(text) == []


def test_no_file_installs_the_package_by_its_name() -> None:
    found = {}
    for path in tracked_files():
        if path.name == "pyproject.toml" or path == Path(__file__):
            continue
        try:
            commands = installs_by_name(path.read_text())
        except UnicodeDecodeError:
            continue  # Not text.
        if commands:
            found[str(path.relative_to(PROJECT))] = commands
    assert found == {}


def test_every_wheel_that_a_page_names_is_of_this_version() -> None:
    current = runpy.run_path(str(PROJECT / "scripts" / "generate_docs.py"))["with_this_wheel"]
    old = version.WHEEL.replace(version.VERSION, "0.0.9")
    assert current(f"`pip install {old}`") == f"`pip install {version.WHEEL}`"
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    assert [page.name for page in pages if current(page.read_text()) != page.read_text()] == []
    assert any(version.WHEEL in page.read_text() for page in pages)


def test_messages_name_libraries_as_the_project_declares_them() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, libraries in version.LIBRARIES.items():
        assert extras[extra] == list(libraries)
        assert shlex.split(version.install_command(extra)) == ["pip", "install", *libraries]
