"""The check of repeated code finds what pylint finds."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.paths import PROJECT

CHECK: dict[str, Any] = runpy.run_path(str(PROJECT / "scripts" / "check_repeated_code.py"))
MINIMUM = 5
SHARED = "".join(f"    total = total + {number} * rate\n" for number in range(MINIMUM + 1))


def report(**modules: str) -> str:
    found: str = CHECK["repeated"]({name: CHECK["code_of"](text) for name, text in modules.items()}, MINIMUM)
    return found


def test_more_than_the_minimum_of_equal_lines_is_found_under_other_names_and_imports() -> None:
    found = report(
        first=f"import os\n\ndef one(total, rate):\n{SHARED}",
        second=f"class Two:\n    # A comment.\n    def two(self, total, rate):\n        pass\n{SHARED}",
        third="def three():\n    return 3\n",
    )
    assert f"{MINIMUM + 1} similar lines in 2 files" in found
    assert "==first" in found and "==second" in found and "==third" not in found


@pytest.mark.parametrize(
    "shared",
    [
        "from os import (\n" + "".join(f"    name_{number},\n" for number in range(MINIMUM + 1)) + ")\n",
        "@decorated\ndef shared(\n" + "".join(f"    name_{number},\n" for number in range(MINIMUM + 1)) + "): ...\n",
        'def shared():\n    """Text.\n' + "    More.\n" * (MINIMUM + 1) + '    """\n',
        f"def shared(total, rate):\n{SHARED[: len(SHARED) // (MINIMUM + 1) * MINIMUM]}",
    ],
    ids=["imports", "a signature", "a docstring", "the minimum alone"],
)
def test_what_may_repeat_is_not_found(shared: str) -> None:
    assert report(first=f"{shared}first = 1\n", second=f"{shared}second = 2\n") == ""
