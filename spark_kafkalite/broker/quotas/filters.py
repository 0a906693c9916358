"""Which entities a DescribeClientQuotas asks for. Pure.

Source: KIP-546, org.apache.kafka.image.ClientQuotasImage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from spark_kafkalite.broker.quotas.limits import ENTITY_TYPES, IP, Entity
from spark_kafkalite.errors import InvalidRequest, UnsupportedVersion

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2


class Component(NamedTuple):
    """What one type's name must be: ``match_type`` 0 the name in ``match``, 1 the default, 2 any."""

    kind: str
    match_type: int
    match: str | None


class EntityFilter:
    """Asks of each entity whether it is meant."""

    def __init__(self, components: Iterable[Component], *, is_strict: bool) -> None:
        """``is_strict``: entities with types that are not asked for are not meant.

        Raises InvalidRequest (42), UnsupportedVersion (35) for an unknown type.
        """
        self._is_strict = is_strict
        self._names: dict[str, str | None] = {}
        self._types: set[str] = set()
        for kind, match_type, match in components:
            if not kind:
                raise InvalidRequest("Invalid empty entity type.")
            if kind in self._types:
                raise InvalidRequest(f"Entity type {kind} cannot appear more than once in the filter.")
            if kind not in ENTITY_TYPES:
                raise UnsupportedVersion(f"Unsupported entity type {kind}; known are {', '.join(ENTITY_TYPES)}")
            if match_type == _EXACT:
                if match is None:
                    raise InvalidRequest("Request specified MATCH_TYPE_EXACT, but set match string to null.")
                self._names[kind] = match
            elif match_type in (_DEFAULT, _ANY):
                if match is not None:
                    name = "MATCH_TYPE_DEFAULT" if match_type == _DEFAULT else "MATCH_TYPE_SPECIFIED"
                    raise InvalidRequest(f"Request specified {name}, but also specified a match string.")
                if match_type == _DEFAULT:
                    self._names[kind] = None
            else:
                raise InvalidRequest(f"Unknown match type {match_type}")
            self._types.add(kind)
        if IP in self._types and len(self._types) > 1:
            raise InvalidRequest(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def means(self, entity: Entity) -> bool:
        """Return whether an entity is asked for. Without components all are, and with a strict filter none."""
        if not self._types:
            return not self._is_strict
        if self._is_strict and len(entity) != len(self._types):
            return False
        return all(kind in entity for kind in self._types) and all(
            entity[kind] == name for kind, name in self._names.items()
        )
