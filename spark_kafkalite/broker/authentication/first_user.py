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
from spark_kafkalite.security.scram import MIN_ITERATIONS, new_salt, read_credential, scram_credential

_ANSWER_WITHIN_S: Final = 10.0


def ensure_user(store: Store, user: str, mechanism: str, password: str) -> bool:
    """Add a user unless there is one with a credential for the mechanism. Raises RegistryError.

    Returns whether the user's password is this one: an earlier credential stays, also one of another password.
    """
    stored = ""

    def change(config: Mapping[str, str]) -> Mapping[str, str]:
        nonlocal stored
        if mechanism not in config:
            credential = scram_credential(mechanism, password, new_salt(), MIN_ITERATIONS)
            config = with_credentials(config, {mechanism: credential})
        stored = config[mechanism]
        return config

    async def alter() -> None:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            await alter_entity(store, entity_nodes.user_entity(user), change)

    try:
        asyncio.run(alter())
    except TimeoutError:
        raise RegistryError(f"the registry did not answer within {_ANSWER_WITHIN_S:.0f} s") from None
    try:
        known = read_credential(mechanism, stored)
    except ValueError:
        return False  # the broker ignores it, and logs why
    return known == scram_credential(mechanism, password, known.salt, known.iterations)
