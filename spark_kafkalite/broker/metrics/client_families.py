"""The families of a scrape that concern clients: authentications, TLS, denied rights, and quotas.

What a broker does not have is no series: none of TLS without a listener that encrypts, none of quotas while there are
no quotas. Names are those of Kafka's beans where it has one. Sources: org.apache.kafka.common.network.Selector,
kafka.server.ClientQuotaManager; Strimzi's kafka-metrics.yaml, and prometheus/jmx_exporter's kafka-2_0_0.yml (quotas).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from spark_kafkalite.broker.authentication.authentication import LOGIN_KINDS
from spark_kafkalite.broker.authorization.authorizer import Authorizer
from spark_kafkalite.broker.network.connection import Connection
from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.quotas.client_quotas import ClientQuotas
from spark_kafkalite.broker.quotas.limits import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaLimits,
    entity_of,
)
from spark_kafkalite.exposition.text import Kind, Page, labels
from spark_kafkalite.slices import Work, counted

# Clients choose their ids: series are of those that used their quotas last.
MOST_CLIENTS: Final = 1_000
# Clients choose the names of their software, too: series are of those with the most connections.
MOST_SOFTWARE: Final = 100
_AT_ONCE: Final = 50
_SOCKETS: Final = "kafka_server_socket_server_metrics"
_DEFAULT: Final = "<default>"
# No client can have this name. Those of a client that has not named itself: ClientInformation.UNKNOWN_NAME_OR_VERSION.
_OTHERS: Final = "<others>"
_UNKNOWN: Final = "unknown"
_LOGIN_TEXTS: Final[Mapping[str, str]] = {
    "successful_authentication": "Authentications that were accepted, and TLS handshakes of listeners without SASL.",
    "failed_authentication": "Authentications and TLS handshakes that failed.",
    "successful_reauthentication": "Accepted authentications of connections that had authenticated before.",
    "failed_reauthentication": "Refused authentications of connections that had authenticated before.",
}
# By kind of quota: Kafka's name of the requests, and of what they use.
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    PRODUCER_BYTE_RATE: ("Produce", "byte_rate"),
    CONSUMER_BYTE_RATE: ("Fetch", "byte_rate"),
    REQUEST_PERCENTAGE: ("Request", "request_time"),
}


def software(page: Page, connections: Collection[Connection]) -> Work[None]:
    """Write how many connections are open of each client software and version, as clients name them (KIP-511)."""
    sessions = [connection.session for connection in connections]
    counts = yield from counted(
        (session.listener.name, session.client_software_name, session.client_software_version) for session in sessions
    )
    shown = counts.most_common(MOST_SOFTWARE)
    yield None
    others = yield from counted(session.listener.name for session in sessions)
    for (listener, _, _), count in shown:
        others[listener] -= count
    name = f"{_SOCKETS}_connections_software"
    page.family(name, "gauge", "Open connections, by the name and version of the client's software.")
    lines = [(listener, said or _UNKNOWN, version or _UNKNOWN, count) for (listener, said, version), count in shown]
    lines += [(listener, _OTHERS, _OTHERS, count) for listener, count in others.items() if count]
    for listener, said, version, count in sorted(lines):
        page.add(name, labels(listener=listener, clientSoftwareName=said, clientSoftwareVersion=version), count)


def logins(page: Page, listeners: Mapping[str, Listener], counts: Counter[tuple[str, str]], tls: BrokerTls) -> None:
    """Write how many authentications there were, for each listener that asks for one."""
    shown = [
        name
        for name, listener in listeners.items()
        if listener.protocol.encrypts
        or listener.protocol.uses_sasl
        or any((name, kind) in counts for kind in LOGIN_KINDS)
    ]
    if not shown:
        return
    for kind in LOGIN_KINDS:
        name = f"{_SOCKETS}_{kind}_total"
        page.family(name, "counter", _LOGIN_TEXTS[kind])
        for listener in shown:
            count = counts[listener, kind]
            handshakes = tls.listeners.get(listener)
            if handshakes is not None and kind == "failed_authentication":
                count += handshakes.failed_handshakes
            elif handshakes is not None and kind == "successful_authentication":
                count += 0 if listeners[listener].protocol.uses_sasl else handshakes.handshakes
            page.add(name, labels(listener=listener), count)


def encryption(page: Page, tls: BrokerTls) -> None:
    """Write the handshakes, connections and certificate of each listener with TLS."""
    if not tls.listeners:
        return
    for name, text, attribute in (
        ("kafkalite_tls_handshakes_total", "TLS handshakes that were completed.", "handshakes"),
        (
            "kafkalite_tls_handshake_failures_total",
            "TLS handshakes that failed; clients that just went are not among them.",
            "failed_handshakes",
        ),
    ):
        page.family(name, "counter", text)
        for listener, each in tls.listeners.items():
            page.add(name, labels(listener=listener), getattr(each, attribute))
    name = f"{_SOCKETS}_connections_tls_info"
    page.family(name, "gauge", "Open connections, by version of TLS and OpenSSL's name of the cipher suite.")
    for listener, each in tls.listeners.items():
        for (protocol, cipher), count in sorted(each.open.items()):
            page.add(name, labels(listener=listener, protocol=protocol, cipher=cipher), count)
    name = "kafkalite_certificate_not_after_seconds"
    page.family(name, "gauge", "When the first certificate of the listener's chain ends, in seconds since 1970.")
    for listener, each in tls.listeners.items():
        page.add(name, labels(listener=listener), each.not_after_s)


def denials(page: Page, authorizer: Authorizer | None) -> None:
    """Write how often clients were denied a right; nothing where there are no ACLs."""
    if authorizer is None:
        return
    name = "kafkalite_acl_denials_total"
    page.family(name, "counter", "Rights that clients lacked, by type of resource and operation, as in the audit log.")
    for (resource_type, operation), count in sorted(authorizer.audit.denials.items()):
        page.add(name, labels(resource=resource_type.title, operation=operation.title), count)


class QuotaFamilies:
    """The quotas that there are, and what clients use of them. Rates are averages since the scrape before."""

    def __init__(self) -> None:
        # By allowance, as of the last scrape: when, what was used, how often and how long its client was throttled.
        self._before: dict[tuple[str, str, str], tuple[float, float, int, float]] = {}

    def write(self, page: Page, limits: QuotaLimits, clients: ClientQuotas) -> Work[None]:
        """Write all of it; nothing while there are no quotas."""
        if not limits.all:
            self._before.clear()
            return
        yield from _limits(page, limits)
        now_s = time.monotonic()
        found = clients.most_used(MOST_CLIENTS)
        page.one(
            "kafkalite_quota_clients_left_out",
            "gauge",
            f"Users and client ids with a quota that have no series: there are {MOST_CLIENTS} at most.",
            len(clients) - len(found),
        )
        before, self._before = self._before, {}
        lines: dict[str, list[tuple[str, float]]] = {}
        for number, ((kind, user, client_id), allowance) in enumerate(found):
            if number % _AT_ONCE == 0:
                yield None
            key = kind, user, client_id
            resource, unit = _KINDS[kind]
            names = labels(resource=resource, user=user, clientId=client_id)
            now = now_s, allowance.used, allowance.throttled, allowance.throttled_s
            self._before[key] = now
            used_name = (
                "kafkalite_quota_bytes_total" if unit == "byte_rate" else "kafkalite_quota_request_seconds_total"
            )
            lines.setdefault(used_name, []).append((names, allowance.used))
            lines.setdefault("kafkalite_quota_throttle_seconds_total", []).append((names, allowance.throttled_s))
            last = before.get(key)
            # A new allowance of the same client has used less than the old one.
            if last is None or now_s <= last[0] or allowance.used < last[1]:
                continue
            rate = (now[1] - last[1]) / (now[0] - last[0])
            lines.setdefault(f"kafka_server_quota_{unit}", []).append(
                (names, rate * (100 if unit != "byte_rate" else 1))
            )
            times = now[2] - last[2]
            average_ms = (now[3] - last[3]) / times * 1000 if times else 0.0
            lines.setdefault("kafka_server_quota_throttle_time", []).append((names, average_ms))
        for name, (kind_of_family, text) in _USE_FAMILIES.items():
            if name in lines:
                page.family(name, kind_of_family, text)
                for names, value in lines[name]:
                    page.add(name, names, round(value, 6))
                yield None


_USE_FAMILIES: Final[Mapping[str, tuple[Kind, str]]] = {
    "kafkalite_quota_bytes_total": ("counter", "Bytes that were charged to a quota of bytes a second."),
    "kafkalite_quota_request_seconds_total": ("counter", "Time of the event loop that was charged to a quota."),
    "kafkalite_quota_throttle_seconds_total": ("counter", "For how long clients were throttled for the quota."),
    "kafka_server_quota_byte_rate": ("gauge", "Bytes a second since the scrape before."),
    "kafka_server_quota_request_time": ("gauge", "Percent of the event loop's time since the scrape before."),
    "kafka_server_quota_throttle_time": ("gauge", "Average throttle time in ms of answers since the scrape before."),
}


def _limits(page: Page, limits: QuotaLimits) -> Work[None]:
    name = "kafkalite_quota_limit"
    page.family(name, "gauge", "Quotas in force: bytes a second, percent of the event loop, connections a second.")
    for number, (path, quotas) in enumerate(list(limits.all.items())):
        if number % _AT_ONCE == 0:
            yield None
        entity = entity_of(path)
        if entity is None:
            continue
        parts = {
            label: _DEFAULT if entity[kind] is None else entity[kind]
            for kind, label in (("user", "user"), ("client-id", "clientId"), ("ip", "ip"))
            if kind in entity
        }
        for quota, bound in quotas.items():
            page.add(name, labels(quota=quota, **parts), bound)
