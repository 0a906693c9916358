"""Installing from source where nothing compiles: it works, it says what is missing, and it runs on the pure twin."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, make_environment, run

pytestmark = [pytest.mark.timeout(1200)]

# Names a program that exists and always fails, which is also what a broken compiler does.
NO_COMPILER = {"CC": "false", "CXX": "false"}

ROUND_TRIP = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from spark_kafkalite.records import kernel
batch = kernel.OpenBatch(10_000)
batch.append(1_700_000_000_000, None, b"value", [])
data = batch.build(0, None)
builder = kernel.ColumnBuilder(False)
builder.add_batch(data, 0, kernel.read_header(data))
print(kernel.IS_NATIVE, builder.finish().value_at(0), *(warning.message for warning in caught), sep="|")
"""


@pytest.fixture(scope="module")
def build(source_distribution: Path) -> tuple[Path, str]:
    """A wheel built from the source distribution without a compiler, and what the build said."""
    unpacked = source_distribution.parent / "unpacked"
    with tarfile.open(source_distribution) as archive:
        if hasattr(tarfile, "data_filter"):  # from 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(unpacked)
    (project,) = unpacked.iterdir()
    out = unpacked.parent / "pure"
    command = ["-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir"]
    said = run(sys.executable, *command, out, project, directory=unpacked, environment=NO_COMPILER)
    (wheel,) = out.glob("*.whl")
    return wheel, said


@pytest.fixture(scope="module")
def without_kernel(build: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return make_environment(tmp_path_factory.mktemp("pure") / "environment", build[0])


def test_the_build_says_that_the_kernel_is_missing_and_what_to_do(build: tuple[Path, str]) -> None:
    wheel, said = build
    assert "WARNING: spark_kafkalite.records._kernel was NOT built" in said
    assert "Install a C compiler" in said
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_the_pure_twin_works_and_warns_once(without_kernel: Environment) -> None:
    native, value, *warnings = without_kernel.run_python(ROUND_TRIP).strip().split("|")
    assert (native, value) == ("False", "b'value'")
    (warning,) = warnings
    assert "without its native kernel" in warning
    assert "times slower" in warning


def test_a_source_distribution_holds_what_a_build_needs(source_distribution: Path) -> None:
    with tarfile.open(source_distribution) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"setup.py", "pyproject.toml", "LICENSE", "README.md", "spark_kafkalite/records/_kernel.pyx"}
    assert needed <= names
    assert not [name for name in names if name.endswith((".so", ".c"))]
