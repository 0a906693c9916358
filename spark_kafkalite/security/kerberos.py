"""SASL GSSAPI (Kerberos V5) on the client's side, by python-gssapi and krb5, which use the host's libkrb5.

A broker's service is ``SERVICE/HOST``, with the advertised host that was dialled. Credentials are a ticket cache, which
is read for each connection, or a keytab, from which a ``TokenKeeper`` gets a new ticket before the old one expires.
Tickets from a keytab are in caches of type MEMORY, each as long as a keeper or an exchange uses it.

A KDC that has served this login before and cannot be reached now is an outage: it is a BrokerUnreachable, which clients
try again until their time is up. One that has never served it may be a wrong setting, and fails at once.

Quality of protection is authentication alone, as with Kafka: TLS is what encrypts a connection. Sources: RFC 4752,
org.apache.kafka.common.security.kerberos.KerberosLogin, SaslClientAuthenticator.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from types import ModuleType
from typing import Any, Final, TypeVar

from spark_kafkalite.errors import BrokerUnreachable, ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.kerberos_errors import (
    DEFECTIVE_TOKEN,
    NO_CREDENTIALS,
    TICKET_EXPIRED,
    Failure,
    explain,
    minor_code,
    says_kdc_is_away,
)
from spark_kafkalite.security.token_keeper import (
    TOKEN_WAIT_S,
    NoTokenInTime,
    RefreshRules,
    TokenKeeper,
    keeper_of,
    lives,
)
from spark_kafkalite.security.tokens import HeldToken
from spark_kafkalite.version import install_command

T = TypeVar("T")
Ask = Callable[[Callable[[], Any]], Any]


MECHANISM: Final = "GSSAPI"
# The object identifier of Kerberos V5 as a mechanism of GSSAPI. Source: RFC 1964.
KERBEROS_V5: Final = "1.2.840.113554.1.2.2"
NO_SECURITY_LAYER: Final = 1
_LAYERS_BYTES: Final = 4
# krb5.h: a name type for which krb5_sname_to_principal asks no DNS.
_NT_UNKNOWN: Final = 0
_caches = itertools.count()


def libraries() -> tuple[ModuleType, ModuleType]:
    """Return the modules gssapi and krb5. Raises ConfigError that names what is missing, and how it is installed."""
    try:
        import gssapi
        import krb5
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigError(
            f"SASL {MECHANISM} needs python-gssapi and krb5{why}: {install_command('kerberos')}; they need "
            "libkrb5, and its headers to be built (Debian: libkrb5-dev, RHEL: krb5-devel)"
        ) from error
    return gssapi, krb5


class KdcUnavailable(SaslAuthenticationFailed):
    """No KDC can be reached, or none has answered in time."""


def _error(code: int, said: str, failure: Failure) -> SaslAuthenticationFailed:
    kind = KdcUnavailable if says_kdc_is_away(code) else SaslAuthenticationFailed
    return kind(explain(code, said, failure))


class _Cache:
    """A ticket cache in memory; its tickets are destroyed with this object."""

    def __init__(self, krb5: ModuleType, context: Any, principal: Any) -> None:
        self.name = f"MEMORY:kafkalite-{os.getpid()}-{next(_caches)}"
        self.cache = krb5.cc_resolve(context, self.name.encode())
        krb5.cc_initialize(context, self.cache, principal)
        # Not at the end of the process, which takes its memory along.
        weakref.finalize(self, _destroy, krb5, context, self.cache).atexit = False


def _destroy(krb5: ModuleType, context: Any, cache: Any) -> None:
    with contextlib.suppress(krb5.Krb5Error):
        krb5.cc_destroy(context, cache)


@dataclass(frozen=True, slots=True)
class KeytabSource:
    """Tickets of a principal, by the key of a keytab. The value of a held token is the name of the cache."""

    principal: str
    keytab: str
    is_cheap: bool = field(default=False, init=False)

    def __str__(self) -> str:
        return f"the keytab {self.keytab} for {self.principal}"

    def fetch(self) -> HeldToken:
        """Return the name of a new cache with a ticket-granting ticket.

        Raises SaslAuthenticationFailed, of the kind KdcUnavailable where no KDC can be reached.
        """
        _, krb5 = libraries()
        failure = Failure(principal=self.principal, keytab=self.keytab)
        try:
            context = krb5.init_context()
            principal = krb5.parse_name_flags(context, self.principal.encode())
            keytab = krb5.kt_resolve(context, f"FILE:{self.keytab}".encode())
            options = krb5.get_init_creds_opt_alloc(context)
            ticket = krb5.get_init_creds_keytab(context, principal, options, keytab=keytab)
            cache = _Cache(krb5, context, principal)
            krb5.cc_store_cred(context, cache.cache, ticket)
        except krb5.Krb5Error as error:
            raise _error(error.err_code, str(error), failure) from None
        return HeldToken(cache.name, float(ticket.times.endtime), cache)


def _nothing() -> None: ...


class GssapiExchange:
    """One authentication of a connection. ``first`` asks a KDC for the service's ticket."""

    def __init__(
        self,
        context: Any,
        failure: Failure,
        remedy: str,
        ask: Ask = lambda step: step(),
        on_refusal: Callable[[], None] = _nothing,
    ) -> None:
        """``context`` is a gssapi.SecurityContext of the initiator, with mutual authentication. ``ask`` calls what may
        ask a KDC, within its time. ``on_refusal`` also keeps the ticket that is used, until the exchange is over."""
        self._context = context
        self._failure = failure
        self.remedy = remedy
        self._ask = ask
        self._on_refusal = on_refusal
        self._is_layer_chosen = False

    def first(self) -> bytes:
        """Return the request to the broker's service.

        Raises SaslAuthenticationFailed, and BrokerUnreachable for an outage of the KDC.
        """
        return self._ask(lambda: self._context.step(None)) or b""

    def refused(self) -> None:
        """Forget the tickets of a keytab: the broker's key may have changed since they were made."""
        self._on_refusal()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the reply to the broker's token, None at the end.

        Raises SaslAuthenticationFailed when the broker does not prove that it is the service, or offers security
        layers only.
        """
        if not self._context.complete:
            # An empty reply has the broker offer its security layers.
            with _explaining(self._failure):
                return self._context.step(challenge) or b""
        if self._is_layer_chosen:
            return None
        # Neither this nor the step before it asks a KDC.
        with _explaining(self._failure):
            layers = self._context.unwrap(challenge).message
        if len(layers) != _LAYERS_BYTES or not layers[0] & NO_SECURITY_LAYER:
            raise SaslAuthenticationFailed(
                f"the broker offers the security layers {layers[:1].hex() or 'none'} of SASL GSSAPI, and not 'auth' "
                "alone: set javax.security.sasl.qop=auth at the broker, and encrypt by security.protocol=SASL_SSL"
            )
        self._is_layer_chosen = True
        with _explaining(self._failure):
            wrapped: bytes = self._context.wrap(bytes([NO_SECURITY_LAYER, 0, 0, 0]), encrypt=False).message
        return wrapped


class KerberosLogin:
    """GSSAPI with a ticket cache (``source`` None), or with the tickets of a keytab."""

    mechanism: Final = MECHANISM

    def __init__(
        self,
        service: str,
        source: KeytabSource | None,
        rules: RefreshRules,
        *,
        principal: str | None = None,
        cache: str | None = None,
        canonicalizes: bool = False,
    ) -> None:
        """``cache`` is a ticket cache's name, None for the default one (KRB5CCNAME)."""
        self._service = service
        self._source = source
        self._principal = principal
        self._cache = cache
        self._canonicalizes = canonicalizes
        # Whether a KDC has served this login.
        self._has_worked = False
        self._keeper = None if source is None else keeper_of(source, rules)

    def exchange(self, host: str, within_s: float = inf) -> GssapiExchange:
        """Return the exchange for a new connection to ``host``. Takes as long as a ticket does to come, 8 s or
        ``within_s`` at most.

        Raises SaslAuthenticationFailed with the reason when there are no credentials, BrokerUnreachable for an outage
        of the KDC and where the ticket expires meanwhile, ConfigError without libraries.
        """
        gssapi, _ = libraries()
        named = f"{self._service}/{host}" if self._canonicalizes else service_principal(self._service, host)
        failure = Failure(
            principal=self._principal or _principal_of(self._cache),
            keytab=None if self._source is None else self._source.keytab,
            cache=self._cache or os.environ.get("KRB5CCNAME"),
            service=named.removesuffix("@"),
        )
        until_s = time.monotonic() + within_s
        token: HeldToken | None = None

        def ask(step: Callable[[], T]) -> T:
            wait_s = max(0.0, min(TOKEN_WAIT_S, until_s - time.monotonic()))
            used = token if token is not None and lives(token) else None
            with self._telling_of_outages():
                try:
                    return _asked_in_time(step, failure, wait_s)
                except KdcUnavailable:
                    raise
                except SaslAuthenticationFailed as error:
                    if used is None or lives(used):
                        raise
                    raise BrokerUnreachable(
                        f"the Kerberos ticket of {failure.principal} has expired while a connection used it; the next "
                        "connection gets a new one"
                    ) from error

        def ask_kdc(step: Callable[[], T]) -> T:
            found = ask(step)
            self._has_worked = True
            return found

        cache = self._cache
        on_refusal: Callable[[], None] = _nothing
        if self._keeper is not None:
            with self._telling_of_outages():
                token = self._ticket(self._keeper, failure, min(TOKEN_WAIT_S, within_s))
            cache, on_refusal = token.value, functools.partial(self._keeper.drop, token)

        def context() -> Any:
            mechanism = gssapi.OID.from_int_seq(KERBEROS_V5)
            name = None
            if self._principal is not None:
                name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
            store = None if cache is None else {"ccache": cache}
            credentials = gssapi.Credentials(name=name, usage="initiate", mechs=[mechanism], store=store)
            # Credentials are looked for now, so that their absence is not taken for a fault of the service.
            _ = credentials.lifetime
            if self._canonicalizes:
                target = gssapi.Name(f"{self._service}@{host}", gssapi.NameType.hostbased_service)
            else:
                target = gssapi.Name(named, gssapi.NameType.kerberos_principal)
            flag = gssapi.RequirementFlag
            return gssapi.SecurityContext(
                name=target,
                creds=credentials,
                usage="initiate",
                mech=mechanism,
                flags=flag.mutual_authentication | flag.integrity | flag.replay_detection,
            )

        return GssapiExchange(ask(context), failure, self._remedy(failure), ask_kdc, on_refusal)

    def _ticket(self, keeper: TokenKeeper, failure: Failure, wait_s: float) -> HeldToken:
        try:
            return keeper.current(self, wait_s)
        except NoTokenInTime:
            raise KdcUnavailable(failure.unanswered(wait_s)) from None

    @contextlib.contextmanager
    def _telling_of_outages(self) -> Iterator[None]:
        """Turn KdcUnavailable into BrokerUnreachable, if a KDC has served this login before."""
        try:
            yield
        except KdcUnavailable as error:
            if self._has_worked or (self._keeper is not None and self._keeper.has_had_one):
                raise BrokerUnreachable(str(error)) from error
            raise

    def _remedy(self, failure: Failure) -> str:
        who = self._principal or "the ticket cache's principal"
        return (
            f"check that the broker has the keys of {failure.service}, that its clock is right, and that its rules "
            f"(sasl.kerberos.principal.to.local.rules) accept {who}"
        )

    def __repr__(self) -> str:
        return f"KerberosLogin({self._source or self._cache or 'the default ticket cache'})"


def _principal_of(cache: str | None) -> str | None:
    """Return the principal of a ticket cache, the default one for None; None when the cache cannot be read."""
    _, krb5 = libraries()
    try:
        context = krb5.init_context()
        opened = krb5.cc_default(context) if cache is None else krb5.cc_resolve(context, cache.encode())
        name: bytes = krb5.unparse_name_flags(context, krb5.cc_get_principal(context, opened))
        return name.decode()
    except (krb5.Krb5Error, UnicodeDecodeError):
        return None


def service_principal(service: str, host: str) -> str:
    """Return ``service/host@REALM``: the realm is that of [domain_realm] in krb5.conf, or empty.

    An empty realm has libkrb5 begin in the client's realm and follow the referrals of its KDC. No DNS is asked for the
    host's other names, also with dns_canonicalize_hostname. By libkrb5 itself, since its Python module lacks the call.
    """
    host = host.lower()
    library = _libkrb5()
    context, principal, text = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_char_p()
    found = f"{service}/{host}@"
    if library is None or library.krb5_init_context(ctypes.byref(context)):
        return found
    try:
        if not library.krb5_sname_to_principal(
            context, host.encode(), service.encode(), ctypes.c_int32(_NT_UNKNOWN), ctypes.byref(principal)
        ):
            if not library.krb5_unparse_name(context, principal, ctypes.byref(text)):
                found = (text.value or b"").decode() or found
                library.krb5_free_unparsed_name(context, text)
            library.krb5_free_principal(context, principal)
    finally:
        library.krb5_free_context(context)
    return found


@functools.cache
def _libkrb5() -> ctypes.CDLL | None:
    """Return the library, looked for once: a search by its name runs programs."""
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libkrb5.so.3")
    with contextlib.suppress(OSError):
        if name := ctypes.util.find_library("krb5"):
            return ctypes.CDLL(name)
    return None


@contextlib.contextmanager
def _explaining(failure: Failure) -> Iterator[None]:
    """Turn errors of libgssapi into SaslAuthenticationFailed with cause and remedy."""
    gssapi, _ = libraries()
    try:
        yield
    except gssapi.exceptions.GSSError as error:
        code = minor_code(error.min_code)
        # libgssapi says it by its major codes alone.
        if isinstance(error, gssapi.exceptions.ExpiredCredentialsError):
            code = TICKET_EXPIRED
        elif isinstance(error, gssapi.exceptions.MissingCredentialsError):
            code = NO_CREDENTIALS
        elif isinstance(error, gssapi.exceptions.InvalidTokenError):
            code = DEFECTIVE_TOKEN
        raise _error(code, str(error), failure) from None


def _asked_in_time(ask: Callable[[], T], failure: Failure, wait_s: float) -> T:
    """Call libkrb5 in a thread of its own, and wait for so long: a KDC that does not answer holds it for longer.

    Raises SaslAuthenticationFailed with cause and remedy, of the kind KdcUnavailable where no KDC answers.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(ask())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="kafkalite-kerberos", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # as many threads as the process may have
        raise SaslAuthenticationFailed(f"no thread can ask the KDC: {error}") from None
    thread.join(wait_s)
    if thread.is_alive():
        raise KdcUnavailable(failure.unanswered(wait_s))
    if failed:
        with _explaining(failure):
            raise failed[0]
    return done[0]
