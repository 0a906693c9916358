"""The demo's checks can fail: a lost record and a doubled file are both found, and the demo says so by exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.spark.class_archive import java_environment

ROOT = Path(__file__).resolve().parents[2]


def run_demo(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "jobs" / "demo.py"), "--output", str(output), *arguments]
    # The demo starts four JVMs, each for a minute at most.
    environment = os.environ | java_environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7 * PATIENCE_S, check=False)


def test_a_directory_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("of years")
    done = run_demo(tmp_path)
    assert done.returncode == 2
    assert f"--output {tmp_path}: it would be emptied" in done.stderr
    assert (tmp_path / "thesis.txt").exists()


def test_a_lost_record_is_found(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "out", "--steps", "1,2", "--from-month", "10", "--seed-fault", "lost-record")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "28888 rows, 28888 distinct, 1 missing, 0 unknown, 0 repeated" in done.stdout
    assert "checks FAILED" in done.stdout


@pytest.mark.spark
def test_a_doubled_file_is_found(tmp_path: Path) -> None:
    fault = ("--seed-fault", "doubled-file")
    done = run_demo(tmp_path / "out", "--steps", "1,2,4", "--from-month", "10", "--no-hdfs", *fault)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if "FAILED first run: the files" in line]
    assert failed, done.stdout
    assert "0 missing, 0 unknown, 0 repeated" not in failed[0]
