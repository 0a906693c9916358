"""Running brokers that ``kafkalite cluster recover-registry`` asks for what they have, each at its own address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_kafkalite.cli.cluster.reachable import can_connect
from spark_kafkalite.errors import KafkaliteError

if TYPE_CHECKING:
    from spark_kafkalite.registry.recovery.host_logs import HostLogs

# A broker with many partitions may have some logs to cut back before it stands still.
ASKED_MS: Final = 60_000


class BrokerNotAsked(KafkaliteError):
    """A broker did not report its logs."""


class AskedBrokers:
    """The brokers at some addresses; ``settings`` are those of a client."""

    def __init__(self, settings: Mapping[str, object], addresses: list[str]) -> None:
        self._settings = settings
        self._addresses = addresses

    def look(self) -> list[HostLogs]:
        """Return what the brokers have now. Raises BrokerNotAsked with all that failed."""
        return self._ask(stands_still=False)

    def stop(self) -> list[HostLogs]:
        """Have the brokers stand still until they are restarted, and return what they have. Raises BrokerNotAsked."""
        return self._ask(stands_still=True)

    def _ask(self, *, stands_still: bool) -> list[HostLogs]:
        from spark_kafkalite.client.admin.admin import Admin
        from spark_kafkalite.client.client_config import parse_address
        from spark_kafkalite.registry.recovery.host_logs import HostLogs

        found, failures = [], []
        for address in self._addresses:
            if not can_connect(*parse_address(address)):
                # A client would try on for as long as a busy broker may take.
                failures.append(
                    f"broker at {address}: no broker answers; if it has ended, read its log directories (--to)"
                )
                continue
            try:
                # Its own client: what the brokers know of each other may be old.
                with Admin({**self._settings, "bootstrap.servers": address}) as admin:
                    data = admin.host_logs(stands_still=stands_still, timeout_ms=ASKED_MS)
                host = HostLogs.decode(f"the answer of {address}", data)
            except KafkaliteError as error:
                failures.append(f"broker at {address}: {error}")
                continue
            found.append(host)
        if failures:
            text = f"nothing has been written: {'; '.join(failures)}"
            if stands_still:
                text += (
                    f". The brokers at {', '.join(self._addresses)} lead nothing any more until they are restarted: "
                    "run the same command again, or restart them to go on without it"
                )
            raise BrokerNotAsked(text)
        return found
