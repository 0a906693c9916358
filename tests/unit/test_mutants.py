"""The table of mutants fits the tree: each fault can still be planted, and the tests that are to find it exist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS
from tests.mutants.trial import problems
from tests.paths import PROJECT


def test_every_mutant_fits_the_tree() -> None:
    assert problems(MUTANTS, PROJECT) == []
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.tests for mutant in MUTANTS)
    assert all(mutant.old != mutant.new for mutant in MUTANTS)


@pytest.mark.parametrize(
    ("content", "tests", "problem"),
    [
        ("a = 1\n", ("tests/test_a.py",), None),
        ("a = 2\n", ("tests/test_a.py",), "m: a.py has the text 0 times"),
        ("a = 1\na = 1\n", ("tests/test_a.py",), "m: a.py has the text 2 times"),
        ("a = 1\n", ("tests/test_b.py",), "m: there is no tests/test_b.py"),
        ("a = 1\n", ("tests/test_a.py::test_it[1]",), None),
        ("a = 1\n", ("tests/test_a.py::test_no",), "m: there is no tests/test_a.py::test_no"),
    ],
)
def test_a_mutant_that_does_not_fit_is_named(
    tmp_path: Path, content: str, tests: tuple[str, ...], problem: str | None
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_it(n): ...\n")
    (tmp_path / "a.py").write_text(content)
    mutant = replace(MUTANTS[0], name="m", file="a.py", old="a = 1", tests=tests)
    assert problems([mutant], tmp_path) == ([] if problem is None else [problem])


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    mutant = replace(MUTANTS[0], name="m", file="gone.py", tests=())
    assert problems([mutant], tmp_path) == ["m: there is no gone.py"]
