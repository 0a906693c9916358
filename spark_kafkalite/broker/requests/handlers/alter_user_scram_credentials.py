"""AlterUserScramCredentials (key 51), version 0: sets and deletes the credentials by which users authenticate.

v0  flexible

The client salts the password and sends the salted form, which is as good as the password: on a listener without TLS
every host on the way can read it. Any broker serves the request, and writes the registry itself. A user's changes are
made all together or not at all. The errors are Kafka's, one for each user:

- RESOURCE_NOT_FOUND (91) for the deletion of a credential that does not exist.
- DUPLICATE_RESOURCE (92) for one credential that is named twice.
- UNACCEPTABLE_CREDENTIAL (93) for an empty name, too few or too many iterations; here also for a name of a broker, a
  name that is too long, and a salt or a salted password of a wrong length.
- UNSUPPORTED_SASL_MECHANISM (33) for an unknown mechanism.

Source: org.apache.kafka.controller.ScramControlManager.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
from collections.abc import Iterator
from typing import Final

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import (
    DuplicateResource,
    KafkaError,
    KafkaStorageError,
    RegistryError,
    RequestTimedOut,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry.store import BadArguments, OutOfRoom
from spark_kafkalite.security.sasl_server import user_problem
from spark_kafkalite.security.scram import (
    MIN_ITERATIONS,
    MOST_STORED_ITERATIONS,
    SCRAM_HASHES,
    SCRAM_TYPES,
    ScramCredential,
    credential_of_salted,
)
from spark_kafkalite.slices import Work, filled, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from spark_kafkalite.wire.rights import refused

_quiet = QuietLog(logging.getLogger(__name__))

# A registry node with two credentials and quotas is far below its limit.
_MOST_SALT_BYTES: Final = 1024
_MOST_CHANGES: Final = 10_000

# By mechanism; None deletes.
Changes = dict[str, ScramCredential | None]


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0)
async def handle(
    context: BrokerContext, exchange: Exchange, message: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Alter the users one after the other."""
    if not exchange.may(Operation.ALTER, ResourceType.CLUSTER):
        return AlterUserScramCredentialsResponse(results=await context.work(exchange, _forbidden(message)))
    outcomes: dict[str, Changes | KafkaError] = await context.work(exchange, _planned(message))
    if message.upsertions and not _is_safe(exchange.session):
        _quiet.log(
            logging.WARNING,
            "clear",
            "%s sent credentials of users over listener %s, which does not encrypt: every host on the way could read "
            "them; use a listener with TLS",
            exchange.session.peer,
            exchange.session.listener.name,
        )
    results = []
    turn = context.slices.turn()
    for user, planned in outcomes.items():
        await turn.pause()
        error: KafkaError | None = None
        if isinstance(planned, KafkaError):
            error = planned
        else:
            error = await _altered(context, user, planned)
            if error is None:
                log_change(exchange, "credentials of user %.100r have been altered: %s", user, _change_text(planned))
        results.append(
            AlterUserScramCredentialsResult(
                user=user,
                error_code=0 if error is None else error.code,
                error_message=None if error is None else str(error),
            )
        )
    await context.slices.run(freed(outcomes))
    return AlterUserScramCredentialsResponse(results=results)


def _forbidden(message: AlterUserScramCredentialsRequest) -> Work[list[AlterUserScramCredentialsResult]]:
    """Return the refusal of each user's changes, whether the user exists or not."""
    refusal = refused(ResourceType.CLUSTER)
    items: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*message.deletions, *message.upsertions]
    names: dict[str, None] = yield from filled({}, ((item.name, None) for item in items))
    results = (
        AlterUserScramCredentialsResult(user=name, error_code=refusal.code, error_message=str(refusal))
        for name in names
    )
    return (yield from filled([], results))


async def _altered(context: BrokerContext, user: str, changes: Changes) -> KafkaError | None:
    """Make a user's changes; return why that was not possible."""
    try:
        await context.users.alter(user, changes)
    except KafkaError as error:
        return error
    except BadArguments as error:
        return UnacceptableCredential(f"the credential cannot be stored: {error}")
    except OutOfRoom as error:
        return KafkaStorageError(f"nothing has been changed: {error}")
    except RegistryError as error:
        return RequestTimedOut(f"the registry failed ({error}); the change may or may not have been made")
    return None


def _planned(message: AlterUserScramCredentialsRequest) -> Work[dict[str, Changes | KafkaError]]:
    """Return each user's changes, or the first thing that is wrong with them; the users in the request's order."""
    planned: dict[str, Changes | KafkaError] = {}
    items: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*message.deletions, *message.upsertions]
    for count, item in enumerate(items):
        if count % 100 == 0:
            yield None
        changes = planned.setdefault(item.name, {})
        if isinstance(changes, KafkaError):
            continue
        try:
            if count >= _MOST_CHANGES:
                raise UnacceptableCredential(f"a request may hold {_MOST_CHANGES} changes; send the others in another")
            mechanism, credential = _change(item)
            if mechanism in changes:
                raise DuplicateResource("A user credential cannot be altered twice in the same request")
            changes[mechanism] = credential
        except KafkaError as error:
            planned[item.name] = error
    return planned


def _change(item: ScramCredentialDeletion | ScramCredentialUpsertion) -> tuple[str, ScramCredential | None]:
    """Return mechanism and credential, None to delete it. Raises the errors in the module's docstring."""
    if not item.name:
        raise UnacceptableCredential("Username must not be empty")
    mechanism = SCRAM_TYPES.get(item.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    if isinstance(item, ScramCredentialDeletion):
        return mechanism, None
    problem = user_problem(item.name) or _credential_problem(item, mechanism)
    if problem is not None:
        raise UnacceptableCredential(problem)
    return mechanism, credential_of_salted(mechanism, item.salted_password, item.salt, item.iterations)


def _credential_problem(item: ScramCredentialUpsertion, mechanism: str) -> str | None:
    if item.iterations < MIN_ITERATIONS:
        return f"Too few iterations: {item.iterations}; at least {MIN_ITERATIONS} are needed"
    if item.iterations > MOST_STORED_ITERATIONS:
        return f"Too many iterations: {item.iterations}; at most {MOST_STORED_ITERATIONS} are allowed"
    if not 0 < len(item.salt) <= _MOST_SALT_BYTES:
        return f"the salt has {len(item.salt)} bytes; it needs 1 to {_MOST_SALT_BYTES}"
    size_bytes = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    if len(item.salted_password) != size_bytes:
        return (
            f"the salted password has {len(item.salted_password)} bytes; for {mechanism} the client sends {size_bytes}"
        )
    return None


def _is_safe(session: Session) -> bool:
    """Return whether the connection is encrypted, or does not leave this host."""
    if session.listener.protocol.encrypts:
        return True
    try:
        return ipaddress.ip_address(session.client_host.lstrip("/").partition("%")[0]).is_loopback
    except ValueError:
        return False


def _change_text(changes: Changes) -> str:
    """Return what was changed, without any credential."""

    def parts() -> Iterator[str]:
        for mechanism, credential in changes.items():
            yield f"{mechanism} deleted" if credential is None else f"{mechanism} set"

    return ", ".join(parts())
