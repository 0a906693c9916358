"""The test runner and the rule about skips: a run that should fail does."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.paths import PROJECT

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
DIES = "import os\ndef test_dies(): os._exit(3)\n"
SKIPS = "import pytest\ndef test_skips(): pytest.skip('no such jar')\n"
SKIPS_AS_A_WHOLE = "import pytest\npytest.importorskip('no_such_module')\n"
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
    """The runner on a project with the suites one and two, which run in this interpreter."""
    module: ModuleType = load_runner(monkeypatch)
    suites = (module.Suite("one", ("tests/one",)), module.Suite("two", ("tests/two",), workers=1))
    for name, value in {"ROOT": tmp_path, "TEST": suites, "SUITES": suites, "read_costs": dict}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "interpreter", lambda suite: sys.executable)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
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


def last_line(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().out.strip().splitlines()[-1].strip("= ")


def test_all_suites_are_summed_up_in_the_last_line(runner: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.main([]) == 0
    assert last_line(capfd).startswith("2 passed in ")


def test_another_environment_can_be_named_for_all_suites(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def interpreter(suite: Any) -> str:
        used.append(suite.environment)
        return sys.executable

    monkeypatch.setattr(runner, "interpreter", interpreter)
    assert runner.main(["--environment", ".venv-other", "one", "two"]) == 0
    assert used == [".venv-other"] * 2


def test_one_suite_can_be_named(runner: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["two"]) == 0
    assert last_line(capfd).startswith("1 passed in ")


def test_a_failure_in_the_first_suite_fails_the_run_and_the_others_run(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "tests/one/test_more.py", FAILS)
    assert runner.main([]) == 1
    assert last_line(capfd).startswith("1 failed, 2 passed in ")


def test_a_suite_without_tests_fails_the_run(runner: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tests/one/test_one.py").write_text("")
    assert runner.main([]) == 1


def test_a_process_that_dies_fails_its_file_and_another_one_runs_the_rest(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "tests/one/test_more.py", DIES)
    assert runner.main([]) == 1
    said = capfd.readouterr().out
    assert said.strip().splitlines()[-1].strip("= ").startswith("1 error, 2 passed in ")
    assert "FAILED tests/one/test_more.py" in said
    assert "ended with exit code 3" in said


def test_a_process_that_cannot_begin_fails_the_run(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests" / "conftest.py").write_text("raise SystemExit(5)\n")
    assert runner.main(["one"]) == 1
    assert "ended with exit code" in capfd.readouterr().out


def test_fixtures_of_a_session_live_from_file_to_file(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "tests" / "conftest.py").open("a") as conftest:
        conftest.write(
            "\nimport itertools\n_counts = itertools.count(1)\n"
            "@pytest.fixture(scope='session')\ndef started():\n    yield next(_counts)\n"
        )
    for name in ("a", "b", "c"):
        write(tmp_path, f"tests/two/test_{name}.py", "def test_started(started): assert started == 1\n")
    assert runner.main(["two"]) == 0
    assert last_line(capfd).startswith("4 passed in ")


def test_a_file_that_cannot_be_imported_fails_the_run(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "tests/one/test_more.py", "import no_such_module\n")
    assert runner.main(["one"]) == 1
    assert "no_such_module" in capfd.readouterr().out


def test_arguments_after_two_dashes_go_to_pytest(runner: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["one", "--", "-k", "nothing_of_the_kind"]) == 1
    assert "no tests" in capfd.readouterr().out


@pytest.mark.parametrize(("content", "in_ci"), [(SKIPS, 1), (SKIPS_AS_A_WHOLE, 1), (EXPECTED_TO_FAIL, 0)])
def test_a_skip_is_a_failure_in_ci_and_nowhere_else(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, in_ci: int
) -> None:
    write(tmp_path, "tests/one/test_more.py", content)
    assert runner.main(["one"]) == 0
    monkeypatch.setenv("CI", "true")
    assert runner.main(["one"]) == in_ci


def test_make_test_runs_every_file_in_one_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_runner(monkeypatch)
    kinds = [suite.kind() for suite in module.TEST if not suite.is_second_run]
    run = sorted(file for kind in kinds for file in kind.files)
    assert run == sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "tests").rglob("test_*.py"))


def test_a_second_run_of_a_file_has_a_cost_of_its_own(
    runner: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    again = replace(runner.TEST[0], name="again", is_second_run=True)
    monkeypatch.setattr(runner, "TEST", (runner.TEST[0], again))
    assert runner.main([]) == 0
    said = capfd.readouterr().out
    assert "again:tests/one/test_one.py" in said
    assert said.strip().splitlines()[-1].strip("= ").startswith("2 passed in ")
