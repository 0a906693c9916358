"""SASL GSSAPI (Kerberos V5) on the client's side, by python-gssapi and krb5, which use the host's libkrb5.

A broker's service is ``SERVICE/HOST``, with the advertised host that was dialled. Credentials are a ticket cache, which
is read for each connection, or a keytab, from which a ``TokenKeeper`` gets a new ticket before the old one expires.
Tickets from a keytab are in caches of type MEMORY; nothing here writes a file.

Quality of protection is authentication alone, as with Kafka: TLS is what encrypts a connection. Sources: RFC 4752,
org.apache.kafka.common.security.kerberos.KerberosLogin, SaslClientAuthenticator.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeVar

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.jaas import JaasEntry
from spark_kafkalite.security.kerberos_errors import NO_CREDENTIALS, TICKET_EXPIRED, Failure, explain, minor_code
from spark_kafkalite.security.token_keeper import TOKEN_WAIT_S, NoTokenInTime, RefreshRules, keeper_of
from spark_kafkalite.security.tokens import HeldToken
from spark_kafkalite.version import install_command

T = TypeVar("T")

_LOG = logging.getLogger("spark_kafkalite.security")
_warned: set[str] = set()

MECHANISM: Final = "GSSAPI"
# The object identifier of Kerberos V5 as a mechanism of GSSAPI. Source: RFC 1964.
_KERBEROS_V5: Final = "1.2.840.113554.1.2.2"
_NO_SECURITY_LAYER: Final = 1
_LAYERS_BYTES: Final = 4
# A cache may be in use by an exchange that began before the newest ticket came. A process has 16 keepers at most.
_MOST_CACHES: Final = 64
# Options of Krb5LoginModule for other uses, or that libkrb5 decides.
_IDLE_OPTIONS: Final = frozenset(
    {"debug", "refreshKrb5Config", "renewTGT", "storePass", "clearPass", "useFirstPass", "tryFirstPass"}
)
_OPTIONS: Final = frozenset(
    {"useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache", "serviceName"}
    # What Java needs for a keytab, and what is always the case here.
    | {"storeKey", "doNotPrompt", "isInitiator"}
)
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
            f"sasl.mechanism={MECHANISM} needs python-gssapi and krb5{why}: {install_command('kerberos')}; they need "
            "libkrb5, and its headers to be built (Debian: libkrb5-dev, RHEL: krb5-devel)"
        ) from error
    return gssapi, krb5


@dataclass(frozen=True, slots=True)
class KeytabSource:
    """Tickets of a principal, by the key of a keytab. The value of a held token is the name of the cache."""

    principal: str
    keytab: str
    is_cheap: bool = field(default=False, init=False)

    def __str__(self) -> str:
        return f"the keytab {self.keytab} for {self.principal}"

    def fetch(self) -> HeldToken:
        """Return the name of a new cache with a ticket-granting ticket. Raises SaslAuthenticationFailed."""
        _, krb5 = libraries()
        failure = Failure(principal=self.principal, keytab=self.keytab)
        try:
            context = krb5.init_context()
            principal = krb5.parse_name_flags(context, self.principal.encode())
            keytab = krb5.kt_resolve(context, f"FILE:{self.keytab}".encode())
            options = krb5.get_init_creds_opt_alloc(context)
            ticket = krb5.get_init_creds_keytab(context, principal, options, keytab=keytab)
            name = f"MEMORY:kafkalite-{os.getpid()}-{next(_caches)}"
            cache = krb5.cc_resolve(context, name.encode())
            krb5.cc_initialize(context, cache, principal)
            krb5.cc_store_cred(context, cache, ticket)
        except krb5.Krb5Error as error:
            raise SaslAuthenticationFailed(explain(error.err_code, str(error), failure)) from None
        _keep(krb5, context, cache)
        return HeldToken(name, float(ticket.times.endtime))


_kept: deque[tuple[Any, Any]] = deque()


def _keep(krb5: ModuleType, context: Any, cache: Any) -> None:
    """Keep the cache, and destroy the oldest one if there are more than are in use.

    Without a lock: a process may fork while a thread is here, and its child would find the lock held.
    """
    _kept.append((context, cache))
    if len(_kept) > _MOST_CACHES:
        with contextlib.suppress(IndexError, krb5.Krb5Error):
            krb5.cc_destroy(*_kept.popleft())


class GssapiExchange:
    """One authentication of a connection. ``first`` asks a KDC for the service's ticket: for 8 seconds at most."""

    def __init__(self, context: Any, failure: Failure, remedy: str) -> None:
        """``context`` is a gssapi.SecurityContext of the initiator, with mutual authentication."""
        self._context = context
        self._failure = failure
        self.remedy = remedy
        self._is_layer_chosen = False

    def first(self) -> bytes:
        """Return the request to the broker's service."""
        return _asked_in_time(lambda: self._context.step(None), self._failure) or b""

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
        if len(layers) != _LAYERS_BYTES or not layers[0] & _NO_SECURITY_LAYER:
            raise SaslAuthenticationFailed(
                f"the broker offers the security layers {layers[:1].hex() or 'none'} of SASL GSSAPI, and not 'auth' "
                "alone: set javax.security.sasl.qop=auth at the broker, and encrypt by security.protocol=SASL_SSL"
            )
        self._is_layer_chosen = True
        with _explaining(self._failure):
            wrapped: bytes = self._context.wrap(bytes([_NO_SECURITY_LAYER, 0, 0, 0]), encrypt=False).message
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
        self._keeper = None if source is None else keeper_of(source, rules)

    def exchange(self, host: str) -> GssapiExchange:
        """Return the exchange for a new connection to ``host``. Takes as long as a ticket does to come, 8 s at most.

        Raises SaslAuthenticationFailed with the reason when there are no credentials, ConfigError without libraries.
        """
        gssapi, _ = libraries()
        named = f"{self._service}/{host}" if self._canonicalizes else service_principal(self._service, host)
        failure = Failure(
            principal=self._principal,
            keytab=None if self._source is None else self._source.keytab,
            cache=self._cache or os.environ.get("KRB5CCNAME"),
            service=named.removesuffix("@"),
        )
        try:
            cache = self._cache if self._keeper is None else self._keeper.current(self).value
        except NoTokenInTime:
            raise SaslAuthenticationFailed(failure.unanswered(TOKEN_WAIT_S)) from None

        def context() -> Any:
            mechanism = gssapi.OID.from_int_seq(_KERBEROS_V5)
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

        return GssapiExchange(_asked_in_time(context, failure), failure, self._remedy(failure))

    def _remedy(self, failure: Failure) -> str:
        who = self._principal or "the ticket cache's principal"
        return (
            f"check that the broker has the keys of {failure.service}, that its clock is right, and that its rules "
            f"(sasl.kerberos.principal.to.local.rules) accept {who}"
        )

    def __repr__(self) -> str:
        return f"KerberosLogin({self._source or self._cache or 'the default ticket cache'})"


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
        raise SaslAuthenticationFailed(explain(code, str(error), failure)) from None


def _asked_in_time(ask: Callable[[], T], failure: Failure) -> T:
    """Call libkrb5 in a thread of its own, and wait for 8 seconds: a KDC that does not answer holds it for longer.

    Raises SaslAuthenticationFailed with cause and remedy.
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
    thread.join(TOKEN_WAIT_S)
    if thread.is_alive():
        raise SaslAuthenticationFailed(failure.unanswered(TOKEN_WAIT_S))
    if failed:
        with _explaining(failure):
            raise failed[0]
    return done[0]


# Settings -------------------------------------------------------------------------------------------------------------


def kerberos_login(values: Mapping[str, Any], jaas: JaasEntry | None) -> KerberosLogin:
    """Return the login that the parsed ``sasl.*`` settings describe.

    Raises ConfigError for what is missing or contradictory, and without the libraries.
    """
    libraries()
    options = {} if jaas is None else jaas.options
    _look_at_options(options)
    service = _agreed("sasl.kerberos.service.name", values, "serviceName", options) or "kafka"
    if "/" in service or "@" in service:
        raise ConfigError(
            f"sasl.kerberos.service.name={service}: give the service alone, such as kafka, without host and realm"
        )
    keytab = _agreed("sasl.kerberos.keytab", values, "keyTab", options)
    principal = _agreed("sasl.kerberos.principal", values, "principal", options)
    wants_cache = _is_true(options, "useTicketCache")
    cache = options.get("ticketCache") if wants_cache else None
    if jaas is not None and keytab is not None and values["sasl.kerberos.keytab"] is None:
        if not _is_true(options, "useKeyTab"):
            raise ConfigError("sasl.jaas.config: keyTab has no effect without useKeyTab=true: add it, or remove keyTab")
        if wants_cache:
            # Java tries the cache first, which makes the user depend on what is in it.
            raise ConfigError("sasl.jaas.config: useKeyTab and useTicketCache are both true: choose one")
    if _is_true(options, "useKeyTab") and keytab is None:
        raise ConfigError("sasl.jaas.config: useKeyTab=true needs keyTab, the path of the keytab")
    if keytab is not None and principal is None:
        raise ConfigError(
            f"sasl.kerberos.keytab={keytab} needs sasl.kerberos.principal (or principal in sasl.jaas.config): the "
            "principal whose key is used"
        )
    if jaas is not None and not keytab and not wants_cache:
        raise ConfigError(
            "sasl.jaas.config: Krb5LoginModule names no credentials: set useTicketCache=true, or useKeyTab=true with "
            "keyTab and principal"
        )
    source = None if keytab is None or principal is None else KeytabSource(principal, _existing(keytab))
    rules = RefreshRules(
        values["sasl.kerberos.ticket.renew.window.factor"],
        values["sasl.kerberos.ticket.renew.jitter"],
        values["sasl.kerberos.min.time.before.relogin"] / 1000,
        0.0,
    )
    return KerberosLogin(
        service,
        source,
        rules,
        principal=principal,
        cache=cache,
        canonicalizes=values["sasl.kerberos.service.host.canonicalize"],
    )


def _look_at_options(options: Mapping[str, str]) -> None:
    """Warn once of options without effect. Raises ConfigError for those that would log in another principal."""
    if options.get("isInitiator", "true").lower() != "true":
        raise ConfigError("sasl.jaas.config: isInitiator=false is for a server: remove it")
    unknown = sorted(options.keys() - _OPTIONS - _IDLE_OPTIONS)
    if unknown:
        raise ConfigError(
            f"sasl.jaas.config: Krb5LoginModule has no option {', '.join(unknown)[:200]}; it has "
            f"{', '.join(sorted(_OPTIONS | _IDLE_OPTIONS))}"
        )
    idle = frozenset(options.keys() & _IDLE_OPTIONS)
    if idle - _warned:
        _warned.update(idle)
        _LOG.warning("sasl.jaas.config: %s: without effect in this client", ", ".join(sorted(idle)))


def _agreed(setting: str, values: Mapping[str, Any], option: str, options: Mapping[str, str]) -> str | None:
    """Return the value of the setting or of the JAAS option. Raises ConfigError when they contradict each other."""
    own, other = values[setting], options.get(option)
    if own is not None and other is not None and own != other:
        raise ConfigError(f"{setting}={own} and {option}={other} in sasl.jaas.config contradict each other: remove one")
    chosen: str | None = other if own is None else own
    if chosen is not None and not chosen.strip():
        raise ConfigError(f"{setting if own is not None else f'sasl.jaas.config: {option}'} is empty: give it a value")
    return chosen


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def _existing(keytab: str) -> str:
    """Return the path of the keytab, or that of a file of its name in the working directory if it is not there.

    Spark's --files brings it into the working directory of an executor. Raises ConfigError for a file that cannot be
    read.
    """
    path = keytab.removeprefix("file://").removeprefix("FILE:")
    if not os.path.exists(path) and os.path.exists(os.path.basename(path)):
        path = os.path.abspath(os.path.basename(path))
    try:
        with open(path, "rb"):
            return path
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"the keytab {keytab} cannot be read on {os.uname().nodename}: {reason}. On an executor of Spark it must "
            "be shipped: spark-submit --files KEYTAB; what spark.kerberos.keytab names does not reach executors"
        ) from None
