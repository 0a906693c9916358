"""Every mutant is found by the tests that the table names. For the soak: some minutes of one core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants.table import MUTANTS, Mutant
from tests.mutants.trial import Copy
from tests.paths import PROJECT

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    copy = Copy(PROJECT, tmp_path_factory.mktemp("mutants"))
    copy.check_tests(MUTANTS)
    yield copy


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_test_finds_the_mutant(copy: Copy, mutant: Mutant) -> None:
    assert copy.outcome(mutant).found_by is not None, f"survived {', '.join(mutant.tests)}"
