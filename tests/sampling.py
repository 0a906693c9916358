"""Tests of which ``make test`` runs a part, and the soak all: each test with one value of a parameter.

``pytestmark = pytest.mark.sampled("place")`` has the tests of a module take turns: the first runs with the first value
of the fixture or parameter ``place``, the second with the second, and so on. A test that is named runs with all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that run with another value. Tests take turns by their names, whatever order they run in."""
    by_parameter: dict[tuple[object, str], dict[str, list[tuple[str, pytest.Item]]]] = defaultdict(dict)
    for item in items:
        mark = item.get_closest_marker("sampled")
        callspec = getattr(item, "callspec", None)
        if mark is None or callspec is None or mark.args[0] not in callspec.params:
            continue
        name = mark.args[0]
        others = sorted((key, repr(value)) for key, value in callspec.params.items() if key != name)
        test = f"{getattr(item, 'originalname', item.name)} {others}"
        by_parameter[item.path, name].setdefault(test, []).append((repr(callspec.params[name]), item))
    found = []
    for tests in by_parameter.values():
        for number, (_, forms) in enumerate(sorted(tests.items())):
            forms.sort(key=lambda form: form[0])
            kept = forms[number % len(forms)][1]
            found += [item for _, item in forms if item is not kept]
    return found
