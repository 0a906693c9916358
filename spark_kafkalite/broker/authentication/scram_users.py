"""The users of SCRAM: their credentials as the registry has them, and how they are changed.

A user's node (``registry.entity_nodes``) holds a credential for each mechanism, in Kafka's form, next to the user's
quotas. A broker follows the nodes through Kafka's notices, so that ``kafka-configs`` of Kafka versions with ZooKeeper
changes users, too. Every broker writes the registry itself: a change is one write at the version that was read, and
needs no controller. The broker answers a change after it has applied it; the others follow within milliseconds.

A user's node counts the deletions of each mechanism's credential. So a broker notices one also if the credential has
been set again before it reads the node (``ended_sessions``).

A user that does not exist is challenged as one that does. Its salt comes from a secret that all brokers share through
the registry, so it is the same at each of them and after a restart.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from spark_kafkalite.errors import RequestTimedOut, ResourceNotFound
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry import entity_nodes
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs
from spark_kafkalite.registry.config_nodes import alter_entity
from spark_kafkalite.registry.store import NodeExists, NoNode, Store, answer
from spark_kafkalite.security.sasl_server import user_problem
from spark_kafkalite.security.scram import SCRAM_HASHES, ScramCredential, credential_text, read_credential

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

_SECRET_BYTES: Final = 32
# Of a setting that counts the deletions of a mechanism's credential: "SCRAM-SHA-256.deletions".
_DELETIONS: Final = ".deletions"
# Kafka's words.
_NOT_THERE: Final = "Attempt to delete a user credential that does not exist"


class ScramUsers:
    """See the module's text. Lives in one event loop."""

    def __init__(self, entities: EntityConfigs, store: Callable[[], Store]) -> None:
        """``store`` returns the present session with the registry, and raises RegistryError while there is none."""
        self._entities = entities
        self._store = store
        # By mechanism and user.
        self._credentials: dict[str, dict[str, ScramCredential]] = {mechanism: {} for mechanism in SCRAM_HASHES}
        # Until the registry's is read nobody can authenticate.
        self.decoy_secret = secrets.token_bytes(_SECRET_BYTES)
        # How often credentials have been deleted, by mechanism and user.
        self._deletions: dict[tuple[str, str], str] = {}
        # Called with mechanism and user of a credential that is gone.
        self._when_deleted: list[Callable[[str, str], None]] = []
        entities.add_listener(self._changed)

    def call_when_deleted(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener`` with the mechanism and the user of each credential that is deleted, or not valid any more.
        Another one may be there already."""
        self._when_deleted.append(listener)

    async def start(self) -> None:
        """Get the secret for decoys. Raises RegistryError."""
        store, path = self._store(), entity_nodes.DECOY_SECRET
        try:
            data, _ = await answer(store.get(path))
        except NoNode:
            with contextlib.suppress(NodeExists):
                made = secrets.token_hex(_SECRET_BYTES).encode()
                await answer(store.create(path, made, private=store.can_be_private, make_parents=True))
            data, _ = await answer(store.get(path))
        if data:
            self.decoy_secret = data

    def find(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return a user's credential, None when the user has none for this mechanism."""
        return self._credentials[mechanism].get(user)

    def names(self) -> set[str]:
        """Return the users that have a credential."""
        return {user for credentials in self._credentials.values() for user in credentials}

    def iterations(self, user: str) -> dict[str, int]:
        """Return the iterations of a user's credentials, by mechanism; empty for a user that has none."""
        return {
            mechanism: credentials[user].iterations
            for mechanism, credentials in self._credentials.items()
            if user in credentials
        }

    async def alter(self, user: str, changes: Mapping[str, ScramCredential | None]) -> None:
        """Set a user's credentials, by mechanism; None deletes the one that there is.

        Raises ResourceNotFound (91) where there is none to delete, and then changes nothing. Raises RegistryError, and
        RequestTimedOut (7) where the change has been written and not been seen here.
        """
        store = self._store()
        entity = entity_nodes.user_entity(user)
        await alter_entity(store, entity, partial(with_credentials, changes=changes))
        if not store.can_be_private:
            _quiet.log(
                logging.WARNING,
                "open",
                "all clients of the registry can read the credentials of users, to guess passwords and to pose as "
                "brokers: set zookeeper.digest at all brokers, and set the credentials again",
            )
        try:
            await self._entities.read(store, entity)
        except Exception as error:
            raise RequestTimedOut(f"the change has been written, but is not seen here yet ({error})") from error

    def _changed(self, entity: str, config: Mapping[str, str]) -> None:
        user = entity_nodes.user_of_entity(entity)
        if user is None:
            return
        problem = user_problem(user) if any(mechanism in config for mechanism in SCRAM_HASHES) else None
        if problem is not None:
            logger.warning("ignoring the credentials of a user in the registry (%s): %s", entity, problem)
        for mechanism, credentials in self._credentials.items():
            text = config.get(mechanism)
            credential = None
            if text is not None and problem is None:
                try:
                    credential = read_credential(mechanism, text)
                except ValueError as error:
                    # As good as deleted: another credential than the one that was meant must not work.
                    logger.error("user %.100r cannot authenticate: %s; set it again", user, error)
            old = credentials.pop(user, None)
            if credential is not None:
                credentials[user] = credential
            if self._count_deletions(mechanism, user, config) or (old is not None and credential is None):
                for listener in self._when_deleted:
                    listener(mechanism, user)

    def _count_deletions(self, mechanism: str, user: str, config: Mapping[str, str]) -> bool:
        """Return whether the node counts deletions that are not known."""
        count = config.get(f"{mechanism}{_DELETIONS}", "")
        if count == self._deletions.get((mechanism, user), ""):
            return False
        if count:
            self._deletions[mechanism, user] = count
        else:
            del self._deletions[mechanism, user]
        return True


def with_credentials(config: Mapping[str, str], changes: Mapping[str, ScramCredential | None]) -> Mapping[str, str]:
    """Return the settings of a user with credentials set, by mechanism, and deleted (None).

    Raises ResourceNotFound (91) where there is none to delete.
    """
    new = dict(config)
    for mechanism, credential in changes.items():
        if credential is not None:
            new[mechanism] = credential_text(credential)
        elif new.pop(mechanism, None) is None:
            raise ResourceNotFound(_NOT_THERE)
        else:
            count = new.get(f"{mechanism}{_DELETIONS}", "")
            new[f"{mechanism}{_DELETIONS}"] = str(int(count) + 1 if count.isdecimal() and len(count) < 18 else 1)
    return new
