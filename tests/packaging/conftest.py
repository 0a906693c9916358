"""Distributions built from a copy of the project, and an environment that one of them is installed into."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, hasty_compiler, make_environment, run

PROJECT = Path(__file__).resolve().parents[2]
# What a checkout gathers, and what a distribution must not depend on.
NOT_SOURCE = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.c", "tests", "bench")


@pytest.fixture(scope="session")
def source_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's sources alone, as a clone has them."""
    copy = tmp_path_factory.mktemp("source") / "project"
    shutil.copytree(PROJECT, copy, ignore=NOT_SOURCE)
    return copy


@pytest.fixture(scope="session")
def wheel(source_copy: Path) -> Path:
    """The binary wheel, built by ``make wheel``'s command."""
    out = source_copy.parent / "wheel"
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out,
        directory=source_copy, environment={"CC": str(hasty_compiler(source_copy.parent))},
    )  # fmt: skip
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def source_distribution(source_copy: Path) -> Path:
    """The sdist."""
    out = source_copy.parent / "sdist"
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, directory=source_copy)
    (built,) = out.glob("*.tar.gz")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the binary wheel."""
    return make_environment(tmp_path_factory.mktemp("installed") / "environment", wheel)
