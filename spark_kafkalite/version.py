"""The version of the package, and how it and the libraries that it can do without are installed.

This file is what a release changes: pyproject.toml reads the version from it, messages take their commands from it, and
``make docs`` writes them into the pages again. No command installs the package by its name. The name is on no package
index, so that an index would answer with nothing, or with the package of a stranger.
"""

from __future__ import annotations

import shlex
from typing import Final

VERSION: Final = "0.3.0.dev0"

# The wheel in the current directory, as a shell finds it: its name goes on with the interpreter and the machine.
WHEEL: Final = f"./spark_kafkalite-{VERSION}-*.whl"

# The extras that a message may name, each with its libraries as pyproject.toml has them.
LIBRARIES: Final = {
    "delta": ("deltalake>=1.6",),
    "kerberos": ("gssapi>=1.8", "krb5>=0.10"),
    "registry": ("confluent-kafka[schemaregistry]>=2.8", "fastavro>=1.10"),
    "security": ("cryptography>=42", "PyJWT>=2.15"),
    "zookeeper-sasl": ("pure-sasl>=0.6.2", "pykerberos>=1.2"),
    "spark": ("pyspark>=4.0",),
}


def install_command(extra: str | None = None) -> str:
    """Return the command that installs the libraries of an extra, or else the package with all that it needs."""
    return f"pip install {WHEEL}" if extra is None else f"pip install {shlex.join(LIBRARIES[extra])}"


def reinstall_command() -> str:
    """Return the command that replaces an installed package and leaves the other ones as they are."""
    return f"pip install --force-reinstall --no-deps {WHEEL}"
