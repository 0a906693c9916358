"""How keytabs are named; nothing here needs the libraries of Kerberos."""

from __future__ import annotations


def keytab_path(keytab: str) -> str:
    """Return the path of a keytab that may be named with ``FILE:`` (libkrb5) or as a file URL (Java)."""
    kind, _, rest = keytab.partition(":")
    if kind.lower() != "file":
        return keytab
    return rest.removeprefix("//") if rest.startswith("///") else rest
