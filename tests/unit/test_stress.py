"""Which test files `make stress` runs, and that it sees a failure."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import stress

UNIT = "tests/unit/test_a.py"
OTHER = "tests/interop/test_b.py"
HELPER = "tests/interop/helper.py"
BASE = "tests/patience.py"
IMPORTS = {
    UNIT: {BASE},
    OTHER: {HELPER},
    HELPER: {BASE},
    BASE: set[str](),
    "tests/conftest.py": set[str](),
    "tests/interop/conftest.py": set[str](),
    "tests/interop/test_c.py": set[str](),
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], []),
        (["spark_kafkalite/model.py", "docs/files.md", "tests/unit/test_gone.py"], []),
        ([OTHER], [OTHER]),
        ([OTHER, UNIT], [UNIT, OTHER]),
        ([HELPER], [OTHER]),
        ([BASE], [UNIT, OTHER]),
        (["tests/interop/conftest.py"], [OTHER, "tests/interop/test_c.py"]),
        (["tests/conftest.py"], []),
    ],
)
def test_a_change_touches_files_and_what_imports_them(changed: list[str], expected: list[str]) -> None:
    assert stress.touched(changed, IMPORTS) == expected


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    for path, source in {
        "tests/one.py": "",
        "tests/sub/two.py": "def f():\n    from tests import (\n        # a word\n        one,\n    )\n",
        "tests/sub/test_three.py": "import pytest\nimport tests.one\nfrom tests.sub.two import f\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    assert stress.imports_of_tests(tmp_path) == {
        "tests/one.py": set(),
        "tests/sub/two.py": {"tests/one.py"},
        "tests/sub/test_three.py": {"tests/one.py", "tests/sub/two.py"},
    }


def test_this_file_depends_on_the_script_and_its_paths() -> None:
    here = "tests/unit/test_stress.py"
    assert {here} <= set(stress.touched(["tests/paths.py"], stress.imports_of_tests(stress.PROJECT)))


def test_only_what_works_in_slices_gets_the_clock_that_stalls() -> None:
    assert "tests.slowclock" in stress.command_of("tests/unit/registry/tree/test_tree.py")
    assert "tests.slowclock" in stress.command_of("tests/unit/test_slices.py")
    assert "tests.slowclock" not in stress.command_of("tests/unit/test_model.py")
    assert "tests.slowclock" not in stress.command_of("tests/interop/broker/test_visibility.py")


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_is_stopped_keeps_its_exit_code_and_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(stress, "_RUNNING_S", (0.0, 0.01))
    monkeypatch.setattr(stress, "_STOPPED_S", (0.0, 0.01))
    program = f"print('said', flush=True); sum(range(1_000_000)); raise SystemExit({code})"
    assert stress.run_with_stops([sys.executable, "-c", program], tmp_path / "out", 1, os.environ) == code
    assert (tmp_path / "out").read_text() == "said\n"


# A child in a session of its own notes that it was continued; its parent ends once it has.
_CHILD = """
import os, signal, sys
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"continued") and os._exit(0))
while True: signal.pause()
"""
_PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {_CHILD!r}], start_new_session=True, check=True)
"""


def test_what_has_begun_a_session_is_stopped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "_RUNNING_S", (0.0, 0.01))
    monkeypatch.setattr(stress, "_STOPPED_S", (0.0, 0.01))
    assert stress.run_with_stops([sys.executable, "-c", _PARENT], tmp_path / "out", 1, os.environ) == 0
    said = (tmp_path / "out").read_text()
    # It may be continued again before it ends.
    assert said and not said.replace("continued", "")


_PAUSING = """
import os, signal, subprocess, sys
from tests.pool.process_tree import tree

def test_a_process_that_a_test_has_stopped_stays_so():
    for _ in range(10):
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        try:
            # As long as some stops of the run, and then again.
            sum(range(500_000))
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            sum(range(500_000))
            assert tree(child.pid)[child.pid].state == "T"
        finally:
            child.kill()
            child.wait()
"""


def test_a_process_that_a_test_has_stopped_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "_RUNNING_S", (0.0, 0.02))
    monkeypatch.setattr(stress, "_STOPPED_S", (0.0, 0.02))
    monkeypatch.setattr(stress, "_ALL_CHANCE", 0.0)
    test = tmp_path / "test_pausing.py"
    test.write_text(_PAUSING)
    command = [*stress.command_of(str(test)), "-c", str(stress.PROJECT / "pyproject.toml"), "--noconftest"]
    code = stress.run_with_stops(command, tmp_path / "out", 1, os.environ)
    assert code == 0, (tmp_path / "out").read_text()


def test_a_file_that_fails_once_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    codes = iter([0, 1, *[0] * 8, *[0] * 10])

    def run(command: list[str], output: Path, seed: int, environment: object) -> int:
        output.write_text("what pytest said\n")
        return next(codes)

    monkeypatch.setattr(stress, "run_with_stops", run)
    monkeypatch.setattr(stress, "_BUSY_LOOPS", 0)
    first, second = stress.stress([UNIT, OTHER], seed=7, minutes=60)
    assert (first.passed, first.failed, first.seed_of_failure) == (9, 1, 8)
    assert (second.passed, second.failed, second.seed_of_failure) == (10, 0, None)
    said = capsys.readouterr().out
    assert "what pytest said" in said
    assert f"9 of 10 passed: {UNIT}; failed first with --seed 8" in said
    assert f"10 of 10 passed: {OTHER}" in said


def test_a_file_for_the_soak_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(stress, "run_with_stops", lambda *_: pytest.ExitCode.NO_TESTS_COLLECTED)
    monkeypatch.setattr(stress, "_BUSY_LOOPS", 0)
    (tally,) = stress.stress([UNIT], seed=1, minutes=60)
    assert tally.is_empty and not tally.failed
    assert f"no test but for the soak: {UNIT}" in capsys.readouterr().out


def test_what_there_is_no_time_for_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "_BUSY_LOOPS", 0)
    (tally,) = stress.stress([UNIT], seed=1, minutes=-1)
    assert tally.runs == 0
