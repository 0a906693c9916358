"""The test runner and the rule about skips: a run that should fail does."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.paths import PROJECT
from tests.pool import runner as pool_runner
from tests.pool.costs import Cost
from tests.pool.idle import Room

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
DIES = "import os\ndef test_dies(): os._exit(3)\n"
SKIPS = "import pytest\ndef test_skips(): pytest.skip('no such jar')\n"
SKIPS_AS_A_WHOLE = "import pytest\npytest.importorskip('no_such_module')\n"
# It ends what it has started when it is interrupted.
HANGS = """
import pathlib, threading
def test_hangs():
    pathlib.Path("begun").touch()
    try:
        threading.Event().wait()
    finally:
        pathlib.Path("ended").touch()
"""
FAILS_AFTER_IT_HAS_BEGUN = """
import pathlib
from tests.patience import wait_until
def test_fails():
    wait_until(pathlib.Path("begun").exists, "the other file has begun")
    assert False
"""
EXPECTED_TO_FAIL = "import pytest\n@pytest.mark.xfail\ndef test_known(): assert False\n"


def load_runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("run_tests", PROJECT / "scripts" / "run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The runner on a project with the suites one and two, whose environment has this interpreter."""
    module: ModuleType = load_runner(monkeypatch)
    suites = (module.Suite("one", ("tests/one",)), module.Suite("two", ("tests/two",), workers=1))
    for name, value in {"ROOT": tmp_path, "TEST": suites, "SUITES": suites, "read_costs": dict}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    write(tmp_path, ".venv/bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)
    # The worker's plug-in and what the conftest imports.
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    write(tmp_path, "tests/one/test_one.py", PASSES)
    write(tmp_path, "tests/two/test_two.py", PASSES)
    shutil.copy(PROJECT / "tests" / "conftest.py", tmp_path / "tests" / "conftest.py")
    return module


def write(root: Path, name: str, content: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content)


def closing_line(output: str) -> str:
    """Return the last line without the time."""
    return output.strip().splitlines()[-1].strip("= ").rpartition(" in ")[0]


def test_a_run_without_failures(
    runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """All suites are summed up, one that runs the same files again too. A session's fixtures live from file to file."""
    again = replace(runner.TEST[0], name="again", is_second_run=True)
    monkeypatch.setattr(runner, "TEST", (*runner.TEST, again))
    with (tmp_path / "tests" / "conftest.py").open("a") as conftest:
        conftest.write(
            "\nimport itertools\n_counts = itertools.count(1)\n"
            "@pytest.fixture(scope='session')\ndef started():\n    yield next(_counts)\n"
        )
    for name in ("a", "b", "c"):
        write(tmp_path, f"tests/two/test_{name}.py", "def test_started(started): assert started == 1\n")
    write(tmp_path, "tests/two/test_skipped.py", SKIPS)
    assert runner.main([]) == 0
    said = capfd.readouterr().out
    assert closing_line(said) == "6 passed, 1 skipped"
    assert "again:tests/one/test_one.py" in said


def test_every_kind_of_failure_fails_the_run(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The process that dies fails its file, and another one runs what is left."""
    write(tmp_path, "tests/one/test_dies.py", DIES)
    write(tmp_path, "tests/one/test_fails.py", FAILS)
    write(tmp_path, "tests/one/test_import.py", "import no_such_module\n")
    assert runner.main(["one", "two"]) == 1
    said = capfd.readouterr().out
    assert closing_line(said) == "1 failed, 2 error, 2 passed"
    assert "FAILED tests/one/test_dies.py" in said
    assert "ended with exit code 3" in said
    assert "No module named 'no_such_module'" in said


def test_a_process_that_cannot_begin_fails_the_run(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests" / "conftest.py").write_text("raise SystemExit(5)\n")
    assert runner.main(["two"]) == 1
    assert "ended with exit code" in capfd.readouterr().out


def test_a_suite_without_tests_fails_the_run(runner: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["two", "--", "-k", "nothing_of_the_kind"]) == 1
    assert closing_line(capfd.readouterr().out) == "no tests ran"


def test_a_skip_is_a_failure_in_ci(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "tests/two/test_skipped.py", SKIPS)
    write(tmp_path, "tests/two/test_as_a_whole.py", SKIPS_AS_A_WHOLE)
    write(tmp_path, "tests/two/test_expected.py", EXPECTED_TO_FAIL)
    monkeypatch.setenv("CI", "true")
    assert runner.main(["two"]) == 1
    # What is expected to fail is not wanting in anything.
    assert closing_line(capfd.readouterr().out) == "1 failed, 1 error, 1 passed, 1 skipped"


def test_the_first_failure_ends_the_run_if_asked(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The files of other processes too, and those of other suites."""
    monkeypatch.setattr(runner, "read_costs", lambda: {"tests/one/test_one.py": Cost(60, 0)})
    write(tmp_path, "tests/one/test_one.py", HANGS)
    for name in "abc":
        write(tmp_path, f"tests/one/test_{name}.py", FAILS_AFTER_IT_HAS_BEGUN + PASSES)
    assert runner.main(["one", "two", "--", "-x"]) == 1
    assert closing_line(capfd.readouterr().out) == "1 failed"
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("files", [0, 1, 9])
def test_one_process_more_runs_files_while_there_is_room(
    runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], files: int
) -> None:
    """There is room for so many files."""
    room = iter([True] * files)
    monkeypatch.setattr(Room, "take", lambda _: next(room, False))
    monkeypatch.setattr(pool_runner, "_HELD_S", 0.0)
    monkeypatch.setattr(runner, "SUITES", (replace(runner.SUITES[0], workers=1, more=1),))
    waits = "import pathlib\nfrom tests.patience import wait_until\n"
    if files:
        waits += "def test_waits(): wait_until(pathlib.Path('other').exists, 'the other file has begun')\n"
    write(tmp_path, "tests/one/test_first.py", waits + PASSES)
    write(tmp_path, "tests/one/test_one.py", "import pathlib\ndef test_begins(): pathlib.Path('other').touch()\n")
    write(tmp_path, "tests/one/test_third.py", PASSES)
    assert runner.main(["one"]) == 0
    assert closing_line(capfd.readouterr().out) == f"{3 + bool(files)} passed"


def test_another_environment_can_be_named_for_all_suites(runner: Any, tmp_path: Path) -> None:
    (tmp_path / ".venv").rename(tmp_path / ".venv-other")
    assert runner.main(["--environment", ".venv-other", "two"]) == 0


def test_make_test_runs_every_file_in_one_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_runner(monkeypatch)
    run = sorted(file for suite in module.TEST if not suite.is_second_run for file in suite.files(PROJECT))
    assert run == sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "tests").rglob("test_*.py"))


def test_a_run_inside_another_one_leaves_that_ones_parts_alone(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKALITE_TEST_PARTS", "the outer run's")
    monkeypatch.setattr(runner.Parts, "begin", lambda _: pytest.fail("no suite here uses them"))
    assert runner.main(["two"]) == 0
    assert os.environ["KAFKALITE_TEST_PARTS"] == "the outer run's"
