"""Administration of the users that authenticate by SCRAM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.errors import ConfigError, ResourceNotFound
from spark_kafkalite.security.scram import (
    MIN_ITERATIONS,
    MOST_STORED_ITERATIONS,
    SCRAM_HASHES,
    SCRAM_TYPES,
    new_salt,
    salted_password,
)
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from spark_kafkalite.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from spark_kafkalite.wire.rights import refusal

DEFAULT_SCRAM_MECHANISM: Final = "SCRAM-SHA-512"

_NUMBERS: Final = {mechanism: number for number, mechanism in SCRAM_TYPES.items()}


class UserAdmin(AdminRequests):
    """The calls of an administrator that have to do with users."""

    def describe_users(
        self, names: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return for each user with SCRAM credentials, or for the named ones, the iterations by mechanism.

        Raises ResourceNotFound (91) for a named user without credentials.
        """
        deadline = self._deadline(timeout_ms)
        users = None if names is None else [UserName(name=name) for name in dict.fromkeys(names)]
        if users == []:
            return {}
        request = DescribeUserScramCredentialsRequest(users=users)
        api_key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
        answer = self._retried(partial(self._cluster.request_controller, api_key, request, deadline), deadline)
        if answer.error_code:
            raise refusal(api_key, answer.error_code, answer.error_message)
        found: dict[str, dict[str, int]] = {}
        for result in answer.results:
            if result.error_code:
                raise refusal(api_key, result.error_code, result.error_message)
            found[result.user] = {
                SCRAM_TYPES.get(info.mechanism, f"mechanism {info.mechanism}"): info.iterations
                for info in result.credential_infos
            }
        return dict(sorted(found.items()))

    def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanism: str = DEFAULT_SCRAM_MECHANISM,
        iterations: int = MIN_ITERATIONS,
        timeout_ms: int | None = None,
    ) -> None:
        """Create a user's SCRAM credential for a mechanism, or replace it. Connections that are open stay so.

        The password does not leave this process, but its salted form does, which is as good: use TLS. Raises
        UnacceptableCredential (93), ConfigError for a mechanism or iterations that are not possible.
        """
        check_credential(mechanism, password, iterations)
        salt = new_salt()
        upsertion = ScramCredentialUpsertion(
            name=user,
            mechanism=_NUMBERS[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=salted_password(mechanism, password, salt, iterations),
        )
        self._alter_users(AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), timeout_ms)

    def delete_user(self, user: str, mechanisms: Iterable[str] | None = None, *, timeout_ms: int | None = None) -> None:
        """Delete a user's SCRAM credentials for these mechanisms, or all of them.

        The connections that they have opened end within a second at all brokers of this project; at Apache Kafka's,
        with the session (``connections.max.reauth.ms``). Raises ResourceNotFound (91) where there is no such
        credential, and then deletes none.
        """
        if mechanisms is None:
            try:
                mechanisms = self.describe_users([user], timeout_ms=timeout_ms)[user]
            except ResourceNotFound:
                raise ResourceNotFound(f"there is no user {user!r} with a SCRAM credential") from None
        deletions = []
        for mechanism in mechanisms:
            _check_mechanism(mechanism)
            deletions.append(ScramCredentialDeletion(name=user, mechanism=_NUMBERS[mechanism]))
        if not deletions:
            raise ResourceNotFound(f"user {user} has no credential to delete")
        self._alter_users(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]), timeout_ms)

    def _alter_users(self, request: AlterUserScramCredentialsRequest, timeout_ms: int | None) -> None:
        deadline = self._deadline(timeout_ms)
        api_key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS

        def ask() -> None:
            answer = self._cluster.request_controller(api_key, request, deadline)
            for result in answer.results:
                if result.error_code:
                    raise refusal(api_key, result.error_code, f"user {result.user!r}: {result.error_message}")

        self._retried(ask, deadline)


def check_credential(mechanism: str, password: str, iterations: int) -> None:
    """Raise ConfigError for what no broker would take."""
    _check_mechanism(mechanism)
    if not password:
        raise ConfigError("the password is empty; give one")
    if not MIN_ITERATIONS <= iterations <= MOST_STORED_ITERATIONS:
        raise ConfigError(f"iterations={iterations}: must be {MIN_ITERATIONS} to {MOST_STORED_ITERATIONS}")


def _check_mechanism(mechanism: str) -> None:
    if mechanism not in SCRAM_HASHES:
        raise ConfigError(f"mechanism={mechanism}: must be one of {', '.join(SCRAM_HASHES)}")


def users_text(users: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str, str]]:
    """Return a row for each credential: user, mechanism, iterations."""
    return [
        (user, mechanism, str(iterations))
        for user, mechanisms in users.items()
        for mechanism, iterations in sorted(mechanisms.items())
    ]
