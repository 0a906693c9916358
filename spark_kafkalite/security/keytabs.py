"""How keytabs are named, and which one a setting names: by a path of its own, or in an option of a JAAS entry.

Nothing here needs the libraries of Kerberos.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.jaas import parse_jaas

KEYTAB: Final = "sasl.kerberos.keytab"
JAAS: Final = "sasl.jaas.config"
KEYTAB_SETTINGS: Final = (KEYTAB, JAAS)
# As the principal of a service: that of any key in the keytab, as with Java.
ANY_PRINCIPAL: Final = "*"
_OPTION: Final = "keyTab"


def keytab_path(keytab: str) -> str:
    """Return the path of a keytab that may be named with ``FILE:`` (libkrb5) or as a file URL (Java)."""
    kind, _, rest = keytab.partition(":")
    if kind.lower() != "file":
        return keytab
    return rest.removeprefix("//") if rest.startswith("///") else rest


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
