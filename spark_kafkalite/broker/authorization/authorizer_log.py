"""The audit log: which principal was allowed or denied what, in Kafka's words, under Kafka's name for the logger.

A denial is written at level INFO, at most a few times in ten seconds for the same principal and resource, and for a
bounded number of resources of each principal. What is left out is counted, and the next line has the count. What is
allowed is written at level DEBUG, every time.

Names come from clients: control characters are escaped, and long names are cut.
Source: kafka.security.authorizer.AclAuthorizer.logAuditMessage.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from spark_kafkalite.acls import CLUSTER_NAME, Operation, ResourceType
from spark_kafkalite.broker.authorization.acl_table import AclVerdict
from spark_kafkalite.broker.event_log import AUDIT_LOGGER
from spark_kafkalite.wire.api_keys import ApiKey

_PERIOD_S: Final = 10.0
_BURST: Final = 3
# Principals and resources that are counted in one period; beyond them only the count of all is kept.
_MOST_COUNTED: Final = 2000
# Those of one principal: with names that it makes up, a client must not keep the denials of others out of the log.
_MOST_OF_PRINCIPAL: Final = 200
_SHOWN_CHARS: Final = 200


class AuthorizerLog:
    """Writes the lines."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        # At level DEBUG it has what is allowed, too. A level of its own keeps that off (``event_log``).
        self.logger = logging.getLogger(AUDIT_LOGGER)
        self._monotonic_s = monotonic_s
        self._period_began_s = monotonic_s()
        # Lines of this period by principal, type and the name as far as it is shown.
        self._counts: dict[tuple[str, ResourceType, str | None], int] = {}
        # How many of these keys each principal has.
        self._of_principal: Counter[str] = Counter()
        self._left_out = 0
        # Decisions against a client, by the resource's type and the operation.
        self.denials: Counter[tuple[ResourceType, Operation]] = Counter()

    def write(
        self,
        principal: str,
        host: str,
        api_key: int,
        operation: Operation,
        resource_type: ResourceType,
        name: str | None,
        verdict: AclVerdict,
    ) -> None:
        """Count a denial; write the decision, unless its kind has had its share of lines."""
        if not verdict.allowed:
            self.denials[resource_type, operation] += 1
        level = logging.DEBUG if verdict.allowed else logging.INFO
        if not self.logger.isEnabledFor(level):
            return
        left_out = 0
        if not verdict.allowed:
            now_s = self._monotonic_s()
            if now_s - self._period_began_s >= _PERIOD_S:
                left_out, self._left_out = self._left_out, 0
                self._period_began_s = now_s
                self._counts.clear()
                self._of_principal.clear()
            key = principal, resource_type, name and name[:_SHOWN_CHARS]
            count = self._counts.get(key, 0)
            if count >= _BURST or (not count and self._is_full(principal)):
                self._left_out += 1
                return
            if not count:
                self._of_principal[principal] += 1
            self._counts[key] = count + 1
        self.logger.log(
            level,
            "Principal = %s is %s operation = %s from host = %s on resource = %s for request = %s based on %s%s",
            _shown(principal),
            "Allowed" if verdict.allowed else "Denied",
            operation.name,
            host,
            f"{resource_type.title}:LITERAL:{'any' if name is None else _shown(name)}",
            _api_name(api_key),
            _rule(verdict),
            f" ({left_out} more denials were not written)" if left_out else "",
        )

    def _is_full(self, principal: str) -> bool:
        return len(self._counts) >= _MOST_COUNTED or self._of_principal[principal] >= _MOST_OF_PRINCIPAL


def _shown(text: str) -> str:
    if text == CLUSTER_NAME or (text.isprintable() and len(text) <= _SHOWN_CHARS):
        return text
    return repr(text[:_SHOWN_CHARS]) + ("..." if len(text) > _SHOWN_CHARS else "")


def _api_name(api_key: int) -> str:
    return ApiKey(api_key).api_name if api_key in ApiKey._value2member_map_ else str(api_key)


def _rule(verdict: AclVerdict) -> str:
    if verdict.by is not None:
        (resource_type, pattern_type, name), entry = verdict.by
        return (
            f"ACL {entry.permission.name} {entry.operation.name} to {_shown(entry.principal)} from "
            f"{_shown(entry.host)} on {resource_type.title}:{pattern_type.name}:{_shown(name)}"
        )
    if verdict.is_open:
        return f"allow.everyone.if.no.acl.found={str(verdict.allowed).lower()}, because the resource has no ACL"
    return "super.users" if verdict.allowed else "no ACL that allows it"
