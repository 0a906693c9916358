"""Gives a cluster its first user, in the registry itself, before any broker could authenticate a client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from spark_kafkalite.broker.authentication.scram_users import with_credentials
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry import entity_nodes
from spark_kafkalite.registry.config_nodes import alter_entity
from spark_kafkalite.registry.store import Store
from spark_kafkalite.security.scram import MIN_ITERATIONS, new_salt, scram_credential

_ANSWER_WITHIN_S: Final = 10.0


def ensure_user(store: Store, user: str, mechanism: str, password: str) -> None:
    """Add a user unless there is one with a credential for the mechanism. Raises RegistryError."""

    def change(config: Mapping[str, str]) -> Mapping[str, str]:
        if mechanism in config:
            return config
        credential = scram_credential(mechanism, password, new_salt(), MIN_ITERATIONS)
        return with_credentials(config, {mechanism: credential})

    async def alter() -> None:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            await alter_entity(store, entity_nodes.user_entity(user), change)

    try:
        asyncio.run(alter())
    except TimeoutError:
        raise RegistryError(f"the registry did not answer within {_ANSWER_WITHIN_S:.0f} s") from None
