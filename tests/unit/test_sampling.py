"""Tests that take turns with the values of a parameter: each runs with one of them, and all with the soak."""

from __future__ import annotations

import pytest

from tests.sampling import left_out

pytest_plugins = ["pytester"]

TESTS = """
import pytest
pytestmark = pytest.mark.sampled("place")

@pytest.mark.parametrize("place", ["registry", "zookeeper"])
def test_a(place): pass

@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("place", ["registry", "zookeeper"])
def test_b(place, how): pass

def test_c(): pass

@pytest.mark.parametrize("place", ["registry", "zookeeper"])
def test_d(place): pass
"""


def test_tests_take_turns_whatever_their_order(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = sampled")
    items, _ = pytester.inline_genitems(pytester.makepyfile(TESTS), "-p", "no:randomly", "-p", "no:cacheprovider")
    for order in (items, items[::-1]):
        dropped = left_out(order)
        assert sorted(item.name for item in order if item not in dropped) == [
            "test_a[registry]",
            "test_b[registry-stop]",
            "test_b[zookeeper-kill]",
            "test_c",
            "test_d[zookeeper]",
        ]
