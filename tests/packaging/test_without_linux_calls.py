"""What macOS lacks is hidden from client, broker, registry, source and sink, and from all their processes.

No Mac runs this: see the module of the fallbacks for what it cannot show.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import PROJECT
from tests.patience import PATIENCE_S

_DIRECTORY = Path(__file__).with_name("without_linux_calls")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "part",
    ["broker", "registry", "client_key", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.any_spark])],
)
def test_a_part_works_without_the_calls_that_macos_lacks(part: str, tmp_path: Path) -> None:
    path = os.pathsep.join((str(_DIRECTORY), str(PROJECT)))
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    if part == "spark":
        from tests.spark.class_archive import java_environment

        environment |= java_environment()
    done = subprocess.run(
        [sys.executable, str(_DIRECTORY / "program.py"), part],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=10 * PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{part}: ")
