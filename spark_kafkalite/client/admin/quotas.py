"""Administration of quotas: of users, of client ids, of both together, and of addresses.

An entity names one or two types (``user``, ``client-id``, ``ip``), each with a name, or None for the default: all that
have no quota of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityDataRequest,
    EntryDataRequest,
    OpData,
)
from spark_kafkalite.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from spark_kafkalite.wire.rights import refusal


class AnyName(Enum):
    """Stands for all names of a type in a question, the default among them."""

    ANY = "any"


ANY: Final = AnyName.ANY
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    """The quotas of one entity: names by type, and values by quota."""

    entity: Mapping[str, str | None]
    quotas: Mapping[str, float]


class QuotaAdmin(AdminRequests):
    """The calls of an administrator that have to do with quotas."""

    def describe_client_quotas(
        self,
        asked: Mapping[str, str | AnyName | None] | None = None,
        *,
        strict: bool = True,
        timeout_ms: int | None = None,
    ) -> list[EntityQuotas]:
        """Return the entities with quotas that have all types of ``asked``, with these names; without it all.

        ``strict`` leaves out entities that have other types, too. Raises InvalidRequest (42).
        """
        request = DescribeClientQuotasRequest(
            components=[_component(kind, name) for kind, name in (asked or {}).items()],
            strict=strict and bool(asked),
        )

        def ask(deadline: Deadline) -> list[EntityQuotas]:
            answer: Any = self._cluster.request_any(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, deadline)
            if answer.error_code:
                raise refusal(
                    ApiKey.DESCRIBE_CLIENT_QUOTAS, answer.error_code, answer.error_message or "quotas are not described"
                )
            return [
                EntityQuotas(
                    {part.entity_type: part.entity_name for part in each.entity},
                    {value.key: value.value for value in each.values},
                )
                for each in answer.entries or ()
            ]

        deadline = self._deadline(timeout_ms)
        return self._retried(partial(ask, deadline), deadline)  # type: ignore[no-any-return]

    def alter_client_quotas(
        self,
        entity: Mapping[str, str | None],
        quotas: Mapping[str, float] | None = None,
        *,
        remove: Iterable[str] = (),
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set and remove quotas of one entity, all or none; with ``validate_only`` only check the change.

        Raises InvalidRequest (42) for an entity, a quota or a value that cannot be.
        """
        operations = [OpData(key=key, value=float(value)) for key, value in (quotas or {}).items()]
        operations += [OpData(key=key, remove=True) for key in remove]
        request = AlterClientQuotasRequest(
            entries=[
                EntryDataRequest(
                    entity=[EntityDataRequest(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                    ops=operations,
                )
            ],
            validate_only=validate_only,
        )

        def ask(deadline: Deadline) -> None:
            answer: Any = self._cluster.request_any(ApiKey.ALTER_CLIENT_QUOTAS, request, deadline)
            for each in answer.entries:
                if each.error_code:
                    raise refusal(
                        ApiKey.ALTER_CLIENT_QUOTAS,
                        each.error_code,
                        f"cannot alter the quotas: {each.error_message or 'refused'}",
                    )

        deadline = self._deadline(timeout_ms)
        self._retried(partial(ask, deadline), deadline)


def _component(kind: str, name: str | AnyName | None) -> ComponentData:
    if isinstance(name, AnyName):
        return ComponentData(entity_type=kind, match_type=_SPECIFIED)
    return ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
