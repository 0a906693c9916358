"""The services of Kerberos of the listeners with GSSAPI, and what makes an exchange for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from spark_kafkalite.broker.authentication.sasl_listeners import SaslListener
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.net.io_threads import IoThreads, Lane

if TYPE_CHECKING:
    from spark_kafkalite.security.sasl_server import SaslServer


def gssapi_servers(listeners: Mapping[str, SaslListener], io: IoThreads) -> dict[str, Callable[[], SaslServer]]:
    """Return what makes an exchange of GSSAPI, by the name of the listener; nothing for one without.

    Raises ConfigError for a keytab that cannot be used.
    """
    found: dict[str, Callable[[], SaslServer]] = {}
    for name, listener in listeners.items():
        tickets = listener.tickets
        if tickets is None:
            continue
        from spark_kafkalite.security.kerberos_server import GssapiServer, KerberosService  # with libkrb5

        try:
            service = KerberosService(tickets.principal, tickets.keytab)
        except ConfigError as error:
            raise ConfigError(f"listener {name}: {error}") from None
        found[name] = partial(GssapiServer, service, tickets.names, partial(io.run, lane=Lane.TICKETS))
    return found
