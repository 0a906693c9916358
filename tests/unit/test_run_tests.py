"""The test runner and the rule about skips: a run that should fail does."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.paths import PROJECT

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
SKIPS = "import pytest\ndef test_skips(): pytest.skip('no such jar')\n"
SKIPS_AS_A_WHOLE = "import pytest\npytest.importorskip('no_such_module')\n"
EXPECTED_TO_FAIL = "import pytest\n@pytest.mark.xfail\ndef test_known(): assert False\n"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The runner on a project with the suites one and two, which run in this interpreter."""
    spec = importlib.util.spec_from_file_location("run_tests", PROJECT / "scripts" / "run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "SUITES", (module.Suite("one", ("tests/one",)), module.Suite("two", ("tests/two",))))
    monkeypatch.setattr(module, "interpreter", lambda suite: sys.executable)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
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


def test_a_folder_that_no_suite_names_fails_the_run(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "tests/three/deeper/test_three.py", PASSES)
    assert runner.main([]) == 1
    assert "tests/three" in capfd.readouterr().err


def test_arguments_after_two_dashes_go_to_pytest(runner: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["one", "--", "-k", "nothing_of_the_kind"]) == 1
    assert "1 deselected" in capfd.readouterr().out


@pytest.mark.parametrize(("content", "in_ci"), [(SKIPS, 1), (SKIPS_AS_A_WHOLE, 1), (EXPECTED_TO_FAIL, 0)])
def test_a_skip_is_a_failure_in_ci_and_nowhere_else(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, in_ci: int
) -> None:
    write(tmp_path, "tests/one/test_more.py", content)
    assert runner.main(["one"]) == 0
    monkeypatch.setenv("CI", "true")
    assert runner.main(["one"]) == in_ci


def test_the_projects_own_suites_name_every_folder(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    spec = importlib.util.spec_from_file_location("run_tests_unchanged", PROJECT / "scripts" / "run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    unchanged = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests_unchanged", unchanged)
    spec.loader.exec_module(unchanged)
    assert unchanged.folders_without_suite() == []
