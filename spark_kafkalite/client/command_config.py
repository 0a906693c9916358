"""``--command-config FILE``: the client settings of a command or a job, in a file instead of on its command line.

A properties file. A value may hold variables in the syntax of Kafka's configuration providers, so that the file itself
needs no secret. ``${env:NAME}`` is an environment variable, ``${file:/path:key}`` a value of another properties file,
``${dir:/path:name}`` the content of a file in a directory (as Kubernetes mounts secrets). Only here: a setting from
elsewhere (a command line, a Spark option, the wire) is taken as it is. Otherwise a user that may set it could read the
files and the environment of the process that uses it (CVE-2024-31141, CVE-2019-12399).

Source: org.apache.kafka.common.config.ConfigTransformer and its providers, which replace once, and not in what they put
in. There ``config.providers`` lists the providers of a file. Here all three always work, and those lines do nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import is_secret, shown_name
from spark_kafkalite.settings import read_properties, read_text

_VARIABLE: Final = r"\$\{([^{}:]*):(?:([^{}:]*):)?([^{}]*)\}"
_PROVIDERS: Final = r"config\.providers(\..*)?"
_PROVIDER_NAMES: Final = ("env", "file", "dir")
_ALLOWED_PATHS: Final = r"config\.providers\..*\.allowed\.paths|config\.providers\..*\.allowlist\.pattern"


def read_command_config(
    path: str, warn: Callable[[str], None], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the settings of a file, its variables replaced. ``warn`` gets a text for a file whose secrets others can
    read.

    Raises ConfigError for a file that cannot be read, and for a variable that is not to be had; it names the file, the
    setting and the variable, and never a value.
    """
    given = read_properties(path)
    # Certificates are hidden, too, but no secrets.
    secret = [name for name, value in given.items() if is_secret(name, value) and not re.search(_VARIABLE, value)]
    if any("certificate" not in name for name in secret):
        _warn_if_others_read(path, warn)
    settings: dict[str, str] = {}
    for name, value in given.items():
        if re.fullmatch(_ALLOWED_PATHS, name):
            # It bounds what a file may name, and its user relies on that.
            raise ConfigError(f"{path}: {name} is not supported; leave it out")
        if not re.fullmatch(_PROVIDERS, name):
            settings[name] = _replaced(path, name, value, warn, environment)
    return settings


def warn_of_arguments(
    names_and_values: Iterable[tuple[str, str]], warn: Callable[[str], None], file_option: str = "--command-config"
) -> None:
    """Call ``warn`` for secrets among settings that were given as arguments; ``file_option`` is the better way."""
    for name, value in names_and_values:
        if is_secret(name, value):
            warn(
                f"{shown_name(name)} is on the command line, where every user of this host sees it in the list of "
                f"processes; put it into a file that only you can read, and give that with {file_option} FILE"
            )


def _warn_if_others_read(path: str, warn: Callable[[str], None]) -> None:
    # Not the group: a service and its administrators often share one for this very purpose.
    if os.stat(path).st_mode & stat.S_IROTH:
        warn(f"{path} holds secrets, and every user of this host can read it; chmod 600 {path}")


def _replaced(path: str, name: str, value: str, warn: Callable[[str], None], environment: Mapping[str, str]) -> str:
    def stands_for(variable: re.Match[str]) -> str:
        provider, where, key = variable.groups()
        if provider not in _PROVIDER_NAMES:
            # Not shown: it may be a piece of a password that looks like one.
            raise ConfigError(
                f"{path}: {shown_name(name)} has a variable of an unknown provider; there are env, file and dir"
            )
        try:
            return _looked_up(provider, where, key, warn, environment)
        except ConfigError as error:
            raise ConfigError(f"{path}: {shown_name(name)}={variable[0]}: {error}") from None

    return re.sub(_VARIABLE, stands_for, value)


def _looked_up(
    provider: str, where: str | None, key: str, warn: Callable[[str], None], environment: Mapping[str, str]
) -> str:
    """Return what a variable stands for. Raises ConfigError."""
    if provider == "env":
        if where:
            raise ConfigError("give it as ${env:NAME}")
        if key not in environment:
            raise ConfigError(f"the environment variable {key} is not set")
        return environment[key]
    if provider == "file":
        if not where or not key:
            raise ConfigError("give it as ${file:/path:key}")
        values = read_properties(where)
        if key not in values:
            raise ConfigError(f"{where} has no {key}")
        _warn_if_others_read(where, warn)
        return values[key]
    if not where or not key or "/" in key:
        raise ConfigError("give it as ${dir:/path:name}, with the name of a file in that directory")
    path = os.path.join(where, key)
    # No warning when others can read it: Kubernetes mounts secrets so, for a container with one user. What an editor
    # ends a file with is no part of the value.
    return read_text(path, path).removesuffix("\n").removesuffix("\r")
