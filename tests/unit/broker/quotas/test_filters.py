"""Which entities a description asks for."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.quotas.filters import Component, EntityFilter
from spark_kafkalite.broker.quotas.limits import Entity
from spark_kafkalite.errors import InvalidRequest, KafkaError, UnsupportedVersion

ENTITIES: list[Entity] = [
    {"user": "u"}, {"user": None}, {"client-id": "c"}, {"user": "u", "client-id": "c"}, {"ip": "10.0.0.1"},
]  # fmt: skip
EXACT, DEFAULT, ANY = 0, 1, 2


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, [0, 1, 2, 3, 4]),
        ([], True, []),
        ([("user", EXACT, "u")], False, [0, 3]),
        ([("user", EXACT, "u")], True, [0]),
        ([("user", DEFAULT, None)], False, [1]),
        ([("user", ANY, None)], True, [0, 1]),
        ([("user", ANY, None)], False, [0, 1, 3]),
        ([("user", ANY, None), ("client-id", EXACT, "c")], True, [3]),
        ([("user", EXACT, "x")], False, []),
        ([("ip", ANY, None)], True, [4]),
    ],
)
def test_what_is_found(components: list[tuple[str, int, str | None]], strict: bool, found: list[int]) -> None:
    asked = EntityFilter((Component(*each) for each in components), is_strict=strict)
    assert [number for number, entity in enumerate(ENTITIES) if asked.means(entity)] == found


@pytest.mark.parametrize(
    ("components", "error", "text"),
    [
        ([("", ANY, None)], InvalidRequest, "Invalid empty entity type"),
        ([("user", ANY, None), ("user", EXACT, "u")], InvalidRequest, "user cannot appear more than once"),
        ([("group", ANY, None)], UnsupportedVersion, "Unsupported entity type group"),
        ([("user", EXACT, None)], InvalidRequest, "set match string to null"),
        ([("user", DEFAULT, "u")], InvalidRequest, "MATCH_TYPE_DEFAULT, but also"),
        ([("user", ANY, "u")], InvalidRequest, "MATCH_TYPE_SPECIFIED, but also"),
        ([("user", 3, None)], InvalidRequest, "Unknown match type 3"),
        ([("ip", ANY, None), ("user", ANY, None)], InvalidRequest, "IP filter component should not"),
    ],
)
def test_what_cannot_be_asked(
    components: list[tuple[str, int, str | None]], error: type[KafkaError], text: str
) -> None:
    with pytest.raises(error, match=text):
        EntityFilter((Component(*each) for each in components), is_strict=True)
