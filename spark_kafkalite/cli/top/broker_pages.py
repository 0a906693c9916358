"""The page ``/status`` of a broker's metrics listener, which its setting ``metrics.listener`` names.

Apache Kafka has no such setting. Where it is not set, or cannot be reached from here, there are no figures of the event
loop; the cause of the latter is shown once.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
from typing import Any, Final

from spark_kafkalite.addresses import host_and_port
from spark_kafkalite.client.network.metadata import Node
from spark_kafkalite.errors import ConfigError

_TIMEOUT_S: Final = 1.0
_MOST_BYTES: Final = 1 << 20


def status_address(listener: str | None, node: Node) -> tuple[str, int] | None:
    """Return where a broker serves its status; None without a listener, or for one that only its own host reaches."""
    if not listener:
        return None
    try:
        host, port = host_and_port(listener, "metrics.listener")
    except ConfigError:
        return None
    if not port:
        return None
    if _is(host, "is_unspecified") or not host:
        return node.host, port
    if _is(host, "is_loopback") and not _is(node.host, "is_loopback"):
        return None
    return host, port


def _is(host: str, what: str) -> bool:
    if host == "localhost":
        return what == "is_loopback"
    try:
        return bool(getattr(ipaddress.ip_address(host), what))
    except ValueError:
        return False


def read_status(address: tuple[str, int], token: str | None) -> dict[str, Any] | None:
    """Return a broker's status, None when it cannot be read."""
    connection = http.client.HTTPConnection(*address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/status", headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
        found = json.loads(body) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) else None
