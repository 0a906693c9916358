"""SASL GSSAPI (Kerberos V5) on the server's side, by python-gssapi, which uses the host's libkrb5.

    client   a request to the service (AP-REQ), with its ticket
    server   the proof that it has the service's key (AP-REP)
    client   nothing
    server   the security layers that it offers: none but authentication alone
    client   the layer that it chooses, and perhaps the user as which it wants to act

No KDC is asked. libkrb5 reads the keytab at each request, so a renewed keytab counts at once. It notes each request in
the replay cache of the host, a file that it locks. So the caller runs this part in a thread. Sources: RFC 4752,
org.apache.kafka.common.security.authenticator.SaslServerAuthenticator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.kerberos import KERBEROS_V5, NO_SECURITY_LAYER, libraries
from spark_kafkalite.security.kerberos_errors import Failure, explain, explain_refusal, minor_code
from spark_kafkalite.security.keytabs import ANY_PRINCIPAL
from spark_kafkalite.security.local_names import SETTING, LocalNames
from spark_kafkalite.security.sasl_server import user_problem
from spark_kafkalite.security.tokens import open_at_once

_LAYERS_BYTES: Final = 4
_NAME_END: Final = re.compile("[/@]")


class Accepted(NamedTuple):
    """A client's request that has been accepted, of ``principal`` to ``service``.

    ``lifetime_s`` is how long its ticket is valid, and the five minutes by which clocks may differ.
    """

    context: Any
    principal: str
    service: str
    reply: bytes
    lifetime_s: float


class KerberosService:
    """A principal of this broker, with its key."""

    def __init__(self, principal: str, keytab: str) -> None:
        """Raises ConfigError for a keytab that cannot be read, or has no key of the principal."""
        gssapi, _ = libraries()
        self._raw, self._error = gssapi.raw, gssapi.exceptions.GSSError
        failure = Failure(principal=principal, keytab=keytab)
        try:
            open(keytab, "rb", opener=open_at_once).close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its path has a NUL character"
            raise ConfigError(f"the keytab {keytab} cannot be read: {reason}") from None
        name = None
        try:
            if principal != ANY_PRINCIPAL:
                name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
            self._credentials = gssapi.Credentials(
                name=name,
                usage="accept",
                mechs=[gssapi.OID.from_int_seq(KERBEROS_V5)],
                store={"keytab": f"FILE:{keytab}"},
            )
        except self._error as error:
            raise ConfigError(explain(minor_code(error.min_code), str(error), failure)) from None

    def accept(self, request: bytes) -> Accepted:
        """Accept a client's request; may block. Raises SaslAuthenticationFailed with the reason.

        By the raw interface: the other one keeps errors back until something else is asked for.
        """
        try:
            done = self._raw.accept_sec_context(request, self._credentials)
            if done.more_steps:
                raise SaslAuthenticationFailed("GSSAPI: the client's request needs more than one step (DCE style)")
            target = self._raw.inquire_context(done.context, target_name=True).target_name
            principal, service = (
                self._raw.display_name(name, False).name.decode() for name in (done.initiator_name, target)
            )
        except self._error as error:
            raise SaslAuthenticationFailed(explain_refusal(minor_code(error.min_code), str(error))) from None
        except UnicodeDecodeError:
            raise SaslAuthenticationFailed("GSSAPI: the client's principal is not UTF-8") from None
        return Accepted(done.context, principal, service, done.token or b"", float(done.lifetime))

    def offer(self, context: Any) -> bytes:
        """Return the offer of security layers: none."""
        offered: bytes = self._raw.wrap(context, bytes([NO_SECURITY_LAYER, 0, 0, 0]), False).message
        return offered

    def choice(self, context: Any, message: bytes) -> bytes:
        """Return the client's choice of a layer. Raises SaslAuthenticationFailed for what it has not protected."""
        try:
            chosen: bytes = self._raw.unwrap(context, message).message
        except self._error as error:
            raise SaslAuthenticationFailed(
                f"GSSAPI: the client's choice of a security layer is not protected by its key ({error})"
            ) from None
        return chosen


class GssapiServer:
    """One exchange."""

    refusal = ""

    def __init__(
        self,
        service: KerberosService,
        names: LocalNames,
        run: Callable[[Callable[[], Accepted]], Awaitable[Accepted]],
    ) -> None:
        """``run`` calls a function in a thread."""
        self.user = ""
        self.is_done = False
        self.lifetime_s = math.inf
        self._service = service
        self._names = names
        self._run = run
        self._principal = self._service_name = ""
        self._context: Any = None
        self._has_offered = False

    async def answer(self, message: bytes) -> bytes:
        """Return the reply to the client's message."""
        if self._context is None:
            accepted = await self._run(partial(self._service.accept, message))
            self._context = accepted.context
            self._principal, self._service_name = accepted.principal, accepted.service
            self.lifetime_s = accepted.lifetime_s
            self.user = self._user()
            # A client that does not want the broker's proof gets the offer at once.
            return accepted.reply or self._offer()
        if not self._has_offered:
            if message:
                raise SaslAuthenticationFailed("GSSAPI: the client's second message is not empty")
            return self._offer()
        self._check_choice(self._service.choice(self._context, message))
        self._context = None
        self.is_done = True
        return b""

    def _offer(self) -> bytes:
        self._has_offered = True
        return self._service.offer(self._context)

    def _user(self) -> str:
        """Return the user of the client's principal. Raises SaslAuthenticationFailed if it has none."""
        user = self._names.name_of(self._principal)
        if user is None:
            raise SaslAuthenticationFailed(
                f"GSSAPI: no rule of {SETTING} makes a user of the principal {self._principal[:200]!r}"
            )
        problem = user_problem(user)
        if problem is not None:
            raise SaslAuthenticationFailed(f"GSSAPI: {SETTING}: {problem}")
        return user

    def _check_choice(self, choice: bytes) -> None:
        """Raise SaslAuthenticationFailed for another layer than was offered, or another user than the client's."""
        if len(choice) < _LAYERS_BYTES or choice[0] != NO_SECURITY_LAYER:
            raise SaslAuthenticationFailed(
                f"GSSAPI: the client chose the security layer {choice[:1].hex() or 'none'}; only authentication is "
                "offered (javax.security.sasl.qop=auth), and SASL_SSL encrypts"
            )
        authzid = choice[_LAYERS_BYTES:].decode(errors="replace")
        # kafka-python and aiokafka name the service here, SERVICE@HOST. No user is called so; the ticket decides.
        names_service = _NAME_END.split(authzid)[0] == _NAME_END.split(self._service_name)[0] != authzid
        if authzid not in ("", self.user, self._principal) and not names_service:
            raise SaslAuthenticationFailed("GSSAPI: a client may act only as the user of its ticket")
