"""Which keytab a setting names: a path of its own, or an option of a JAAS entry."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.jaas import parse_jaas
from spark_kafkalite.security.kerberos_paths import keytab_path

KEYTAB: Final = "sasl.kerberos.keytab"
JAAS: Final = "sasl.jaas.config"
KEYTAB_SETTINGS: Final = (KEYTAB, JAAS)
_OPTION: Final = "keyTab"


def named_keytab(setting: str, value: str) -> str:
    """Return the path of the keytab that one of :data:`KEYTAB_SETTINGS` names, an empty text for none.

    A JAAS entry that is not of the form names none; a client of it raises ConfigError.
    """
    if setting == KEYTAB:
        return keytab_path(value)
    try:
        return keytab_path(parse_jaas(value).options.get(_OPTION, "")) if value else ""
    except ConfigError:
        return ""


def with_keytab(setting: str, value: str, path: str) -> str:
    """Return the setting's value with another keytab, where :func:`named_keytab` has found one."""
    return path if setting == KEYTAB else parse_jaas(value).with_option(_OPTION, path)
