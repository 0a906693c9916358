"""Which credentials of Kerberos the settings name: ``sasl.kerberos.*``, and the options of Krb5LoginModule.

Two that contradict each other are an error: with either of them the client would log in, perhaps as another user.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.jaas import JaasEntry
from spark_kafkalite.security.kerberos import KerberosLogin, KeytabSource, libraries
from spark_kafkalite.security.keytabs import keytab_path
from spark_kafkalite.security.token_keeper import RefreshRules
from spark_kafkalite.security.tokens import open_at_once

_LOG = logging.getLogger("spark_kafkalite.security")
_warned: set[str] = set()

# Options of Krb5LoginModule for other uses, or that libkrb5 decides.
_IDLE_OPTIONS: Final = frozenset(
    {"debug", "refreshKrb5Config", "renewTGT", "storePass", "clearPass", "useFirstPass", "tryFirstPass"}
)
_OPTIONS: Final = frozenset(
    {"useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache", "serviceName"}
    # What Java needs for a keytab, and what is always the case here.
    | {"storeKey", "doNotPrompt", "isInitiator"}
)
_MOST_CHARS: Final = 1024
# Java takes a cache without one of these for a path.
_CACHE_TYPES: Final = ("FILE:", "DIR:", "KEYRING:", "KCM:", "MEMORY:", "API:")


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
    for name, value in (("principal", principal), ("service", service), ("keytab", keytab)):
        check_kerberos_text(name, value)
    wants_cache = _is_true(options, "useTicketCache")
    cache = _cache_name(options["ticketCache"]) if "ticketCache" in options else None
    if cache is not None and not wants_cache:
        raise ConfigError(
            "sasl.jaas.config: ticketCache has no effect without useTicketCache=true: add it, or remove it"
        )
    if keytab is not None and "useKeyTab" in options and not _is_true(options, "useKeyTab"):
        raise ConfigError("sasl.jaas.config: useKeyTab is false, and there is a keytab: remove one of the two")
    if options.get("keyTab") is not None and not _is_true(options, "useKeyTab"):
        raise ConfigError("sasl.jaas.config: keyTab has no effect without useKeyTab=true: add it, or remove keyTab")
    if wants_cache and (keytab is not None or _is_true(options, "useKeyTab")):
        # Java tries the cache first, which makes the user depend on what is in it.
        given = "useKeyTab" if values["sasl.kerberos.keytab"] is None else "sasl.kerberos.keytab"
        raise ConfigError(f"sasl.jaas.config: useTicketCache is true, and {given} names a keytab: choose one")
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


def _cache_name(cache: str) -> str:
    """Return the name of a cache as libkrb5 has it: Java's are paths, which may have a colon."""
    return cache if cache.startswith(_CACHE_TYPES) else f"FILE:{cache}"


def check_kerberos_text(name: str, value: str | None) -> None:
    """Raise ConfigError for a text that libkrb5 would cut off, or that no name can be."""
    if value is not None and (len(value) > _MOST_CHARS or not value.isprintable()):
        shown = "".join(sign if sign.isprintable() else "?" for sign in value[:40])
        raise ConfigError(
            f"the Kerberos {name} {shown!r} has {len(value)} characters: give at most {_MOST_CHARS} printable ones"
        )


def _existing(keytab: str) -> str:
    """Return the path of the keytab, or that of a file of its name in the working directory if it is not there.

    Spark's --files brings it into the working directory of an executor. Raises ConfigError for a file that cannot be
    read.
    """
    path = keytab_path(keytab)
    if not os.path.exists(path) and os.path.exists(os.path.basename(path)):
        path = os.path.abspath(os.path.basename(path))
    try:
        with open(path, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is not a regular file")
            return path
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"the keytab {keytab} cannot be read on {os.uname().nodename}: {reason}. On an executor of Spark it must "
            "be shipped: spark-submit --files KEYTAB; what spark.kerberos.keytab names does not reach executors"
        ) from None
