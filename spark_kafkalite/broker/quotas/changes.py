"""Alters quotas in the registry, for AlterClientQuotas.

Any broker does it, as it alters the settings of topics: the node is written at the version that was read, so that two
alterations at the same time both count, and all brokers receive a notice. The answer is given once this broker obeys.

Source: org.apache.kafka.controller.ClientQuotaControlManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.broker.quotas.limits import Entity, checked_entity, entity_path, value_text
from spark_kafkalite.errors import InvalidRequest, KafkaStorageError, RegistryError, RequestTimedOut
from spark_kafkalite.redaction import shown_name
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs
from spark_kafkalite.registry.config_nodes import alter_entity
from spark_kafkalite.registry.store import BadArguments, OutOfRoom, Store

# More than there are quotas.
_MOST_OPERATIONS: Final = 100


class QuotaOperation(NamedTuple):
    """Sets a quota to ``value``, or removes it if that is None."""

    key: str
    value: float | None


class QuotaChanges:
    """See the module's text."""

    def __init__(self, entities: EntityConfigs, store: Callable[[], Store]) -> None:
        """``store`` returns the present registry session's, or raises RegistryError."""
        self._entities = entities
        self._store = store

    async def alter(
        self,
        parts: Sequence[tuple[str, str | None]],
        operations: Sequence[QuotaOperation],
        *,
        validate_only: bool = False,
    ) -> Entity:
        """Do the operations on the quotas of the entity that pairs of type and name make, and return it.

        Raises InvalidRequest (42); RequestTimedOut (7) if the registry fails, KafkaStorageError (56) if it is full.
        """
        entity = checked_entity(parts)
        if len(operations) > _MOST_OPERATIONS:
            raise InvalidRequest(f"{len(operations)} changes of one entity; at most {_MOST_OPERATIONS} are possible")
        new: dict[str, str | None] = {}
        for key, value in operations:
            if key in new:
                raise InvalidRequest(f"Duplicate quota key {key} not updating quota for this entity {dict(entity)}")
            new[key] = None if value is None else value_text(entity, key, value)
        if validate_only:
            return entity

        def change(old: Mapping[str, str]) -> Mapping[str, str]:
            merged: dict[str, str | None] = {**old, **new}
            return {key: text for key, text in merged.items() if text is not None}

        path = entity_path(entity)
        try:
            store = self._store()
            await alter_entity(store, path, change)
            # The notice comes here, too, but later.
            await self._entities.read(store, path)
        except BadArguments as error:
            raise InvalidRequest(f"the quotas of {entity_text(entity)} cannot be stored: {error}") from error
        except OutOfRoom as error:
            raise KafkaStorageError(f"nothing has been changed: {error}") from error
        except RegistryError as error:
            raise RequestTimedOut(f"the registry failed ({error}); the change may or may not have been made") from error
        return entity


def entity_text(entity: Entity) -> str:
    """Return an entity for a message: ``user 'alice', the default client-id``."""
    return ", ".join(
        f"the default {kind}" if name is None else f"{kind} {shown_name(name)!r}" for kind, name in entity.items()
    )


def change_text(entity: Entity, operations: Sequence[QuotaOperation]) -> str:
    """Return what a change has done, for the log."""
    done = ", ".join(f"{key} removed" if value is None else f"{key}={value:.15g}" for key, value in operations)
    return f"quotas of {entity_text(entity)} have been altered: {done}"
