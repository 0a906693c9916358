"""Every error code of the protocol, its exception class and its name.

The classes come from ``errors.py`` where our code raises or catches them by name. The others are made here from a
table, so that each code that a broker sends has a class, a name and a note on whether a retry may help. A test compares
the whole with kio's list.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from spark_kafkalite import errors
from spark_kafkalite.errors import KafkaError, RetriableError, StaleMetadataError, UnknownServerError

NONE: Final = 0


class _Rare(NamedTuple):
    code: int
    name: str
    base: type[KafkaError]
    meaning: str


# What errors.py does not name. Which of them another try may cure, and which mean that the client's picture of the
# cluster is stale: org.apache.kafka.common.errors, RetriableException and InvalidMetadataException.
_RARE: Final = (
    _Rare(4, "INVALID_FETCH_SIZE", KafkaError, "The fetch size is negative."),
    _Rare(9, "REPLICA_NOT_AVAILABLE", StaleMetadataError, "The replica is not available."),
    _Rare(11, "STALE_CONTROLLER_EPOCH", KafkaError, "Another broker has become the controller since."),
    _Rare(13, "NETWORK_EXCEPTION", StaleMetadataError, "The connection closed before the answer came."),
    _Rare(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", KafkaError, "The topic's record format is too old for this request."),
    _Rare(48, "INVALID_TXN_STATE", KafkaError, "The transaction is in a state that does not allow this."),
    _Rare(49, "INVALID_PRODUCER_ID_MAPPING", KafkaError, "This producer id does not belong to the transactional id."),
    _Rare(50, "INVALID_TRANSACTION_TIMEOUT", KafkaError, "The transaction timeout is above what the broker allows."),
    _Rare(51, "CONCURRENT_TRANSACTIONS", RetriableError, "The producer's last transaction is not finished yet."),
    _Rare(
        55,
        "OPERATION_NOT_ATTEMPTED",
        KafkaError,
        "The operation was not tried, because another one in the request failed.",
    ),
    _Rare(57, "LOG_DIR_NOT_FOUND", KafkaError, "The broker has no such log directory."),
    _Rare(61, "DELEGATION_TOKEN_AUTH_DISABLED", KafkaError, "Delegation tokens are not enabled."),
    _Rare(62, "DELEGATION_TOKEN_NOT_FOUND", KafkaError, "The broker has no such delegation token."),
    _Rare(63, "DELEGATION_TOKEN_OWNER_MISMATCH", KafkaError, "The delegation token belongs to another principal."),
    _Rare(
        64,
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        KafkaError,
        "Delegation tokens cannot be asked for over this kind of connection.",
    ),
    _Rare(65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", KafkaError, "This principal may not use the delegation token."),
    _Rare(66, "DELEGATION_TOKEN_EXPIRED", KafkaError, "The delegation token has expired."),
    _Rare(67, "INVALID_PRINCIPAL_TYPE", KafkaError, "Principals of this type are not possible here."),
    _Rare(77, "STALE_BROKER_EPOCH", KafkaError, "The broker has registered again since."),
    _Rare(88, "UNSTABLE_OFFSET_COMMIT", RetriableError, "A transaction may still change the committed offset."),
    _Rare(89, "THROTTLING_QUOTA_EXCEEDED", RetriableError, "The principal has used up its quota for such changes."),
    _Rare(90, "PRODUCER_FENCED", KafkaError, "A newer producer uses this transactional id."),
    _Rare(94, "INCONSISTENT_VOTER_SET", KafkaError, "The set of voters differs from the one this broker knows."),
    _Rare(95, "INVALID_UPDATE_VERSION", KafkaError, "The new version number is not legal."),
    _Rare(96, "FEATURE_UPDATE_FAILED", KafkaError, "The feature could not be changed."),
    _Rare(97, "PRINCIPAL_DESERIALIZATION_FAILURE", KafkaError, "The forwarded principal cannot be read."),
    _Rare(98, "SNAPSHOT_NOT_FOUND", KafkaError, "There is no such snapshot."),
    _Rare(99, "POSITION_OUT_OF_RANGE", KafkaError, "The position lies outside the snapshot."),
    _Rare(101, "DUPLICATE_BROKER_REGISTRATION", KafkaError, "This broker id is registered already."),
    _Rare(102, "BROKER_ID_NOT_REGISTERED", KafkaError, "This broker id is not registered."),
    _Rare(105, "TRANSACTIONAL_ID_NOT_FOUND", KafkaError, "There is no such transactional id."),
    _Rare(107, "INELIGIBLE_REPLICA", KafkaError, "The replica may not join the in-sync replicas."),
    _Rare(108, "NEW_LEADER_ELECTED", KafkaError, "A new leader was elected by this request."),
    _Rare(109, "OFFSET_MOVED_TO_TIERED_STORAGE", KafkaError, "The offset has moved to tiered storage."),
    _Rare(110, "FENCED_MEMBER_EPOCH", KafkaError, "A newer epoch of this group member exists."),
    _Rare(111, "UNRELEASED_INSTANCE_ID", KafkaError, "Another member has not released this instance id yet."),
    _Rare(112, "UNSUPPORTED_ASSIGNOR", KafkaError, "The group coordinator does not know the assignor."),
    _Rare(113, "STALE_MEMBER_EPOCH", KafkaError, "The member's epoch is behind; heartbeat first."),
    _Rare(114, "MISMATCHED_ENDPOINT_TYPE", KafkaError, "The request is meant for another kind of endpoint."),
    _Rare(115, "UNSUPPORTED_ENDPOINT_TYPE", KafkaError, "The broker does not know this kind of endpoint."),
    _Rare(116, "UNKNOWN_CONTROLLER_ID", KafkaError, "There is no controller of this id."),
    _Rare(117, "UNKNOWN_SUBSCRIPTION_ID", KafkaError, "The client's telemetry subscription is not the present one."),
    _Rare(118, "TELEMETRY_TOO_LARGE", KafkaError, "The telemetry is larger than the broker allows."),
    _Rare(119, "INVALID_REGISTRATION", KafkaError, "The controller refuses the registration."),
    _Rare(120, "TRANSACTION_ABORTABLE", KafkaError, "The transaction has met an error and must be aborted."),
    _Rare(121, "INVALID_RECORD_STATE", KafkaError, "The record is not in a state that allows this."),
    _Rare(122, "SHARE_SESSION_NOT_FOUND", RetriableError, "The broker does not know the share session."),
    _Rare(123, "INVALID_SHARE_SESSION_EPOCH", RetriableError, "The share session's epoch is not the next one."),
    _Rare(124, "FENCED_STATE_EPOCH", KafkaError, "A newer epoch of this state exists."),
    _Rare(125, "INVALID_VOTER_KEY", KafkaError, "The voter's key is not the expected one."),
    _Rare(126, "DUPLICATE_VOTER", KafkaError, "The voter is in the set already."),
    _Rare(127, "VOTER_NOT_FOUND", KafkaError, "The voter is not in the set."),
    _Rare(128, "INVALID_REGULAR_EXPRESSION", KafkaError, "The regular expression is not legal."),
    _Rare(129, "REBOOTSTRAP_REQUIRED", KafkaError, "The client must start again from its bootstrap servers."),
    _Rare(130, "STREAMS_INVALID_TOPOLOGY", KafkaError, "The streams topology is not legal."),
    _Rare(131, "STREAMS_INVALID_TOPOLOGY_EPOCH", KafkaError, "The streams topology's epoch is not legal."),
    _Rare(132, "STREAMS_TOPOLOGY_FENCED", KafkaError, "The streams topology's epoch is behind."),
    _Rare(133, "SHARE_SESSION_LIMIT_REACHED", RetriableError, "The broker has as many share sessions as it allows."),
)

# Classes whose name on the wire is not simply their own in capitals.
_WIRE_NAMES: Final = {
    "InvalidTopic": "INVALID_TOPIC_EXCEPTION",
}


def _wire_name(class_name: str) -> str:
    return _WIRE_NAMES.get(class_name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).upper()


def _class_name(wire_name: str) -> str:
    return "".join(word.capitalize() for word in wire_name.split("_"))


@cache
def _known() -> tuple[dict[int, type[KafkaError]], dict[int, str]]:
    """Return the class and the name of every code. Made at the first error: most clients never see one."""
    classes: dict[int, type[KafkaError]] = {}
    for value in vars(errors).values():
        # "code" in its own dictionary: bases without a code of their own inherit one.
        # KafkaError itself, the base, comes first in that file and gives way to UnknownServerError.
        if isinstance(value, type) and issubclass(value, KafkaError) and "code" in vars(value):
            classes[value.code] = value
    names = {code: _wire_name(cls.__name__) for code, cls in classes.items()}
    for rare in _RARE:
        body = {"code": rare.code, "__doc__": rare.meaning, "__module__": __name__}
        classes[rare.code] = type(_class_name(rare.name), (rare.base,), body)
        names[rare.code] = rare.name
    return classes, names


def __getattr__(name: str) -> type[KafkaError]:
    """Return the class of a rare code, which pickle asks for by its name."""
    for cls in _known()[0].values():
        if cls.__name__ == name and cls.__module__ == __name__:
            return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def class_for(code: int) -> type[KafkaError]:
    """Return the exception class of a code other than 0; UnknownServerError for a code that is not known."""
    return _known()[0].get(code, UnknownServerError)


def error_for(code: int, message: str | None = None) -> KafkaError:
    """Return an exception, not raised, for a code that came over the wire.

    ``message`` is the broker's own text; without one, or with an empty one, the class's meaning is the text. The text
    ends with the code's name and number.
    """
    cls = class_for(code)
    text = message or " ".join((cls.__doc__ or "").split())
    name = f"{name_of(code)}, code {code}" if code in _known()[1] else name_of(code)
    return cls(f"{text} ({name})")


def name_of(code: int) -> str:
    """Return the code's name as Kafka spells it, NONE for 0; a code that is not known is named by its number."""
    if code == NONE:
        return "NONE"
    return _known()[1].get(code) or f"error code {code}"


def is_retriable(code: int) -> bool:
    """Return whether the same request may succeed later."""
    return code != NONE and class_for(code).retriable


def codes() -> list[int]:
    """Every known code but 0, in order."""
    return sorted(_known()[0])
