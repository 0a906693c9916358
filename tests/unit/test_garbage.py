"""Collections that take long freeze what they have looked at."""

import gc
from collections.abc import Iterator

import pytest

from spark_kafkalite import garbage


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    callbacks = list(gc.callbacks)
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize(("limit_s", "freezes"), [(0.0, True), (1000.0, False)])
def test_what_a_long_collection_has_looked_at_is_frozen(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, freezes: bool
) -> None:
    monkeypatch.setattr(garbage, "FREEZE_AFTER_S", limit_s)
    garbage.keep_collections_short()
    gc.disable()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    kept = [[number] for number in range(5000)]
    gc.collect(0)
    gc.collect(1)
    assert gc.get_freeze_count() <= frozen
    gc.collect()
    assert (gc.get_freeze_count() >= frozen + len(kept) // 2) == freezes
