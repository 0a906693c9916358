"""Where the files that client settings name are: by path, else among those that Spark ships to every host.

``--files`` and ``SparkContext.addFile`` copy a file to the driver and to each executor, under its last name in a
directory that differs from host to host. So each process looks for the files when it makes a client. Spark never renews
a shipped copy. To change a store, ship it again to a new application; a shipped token is valid until it expires.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from spark_kafkalite.redaction import shown_value
from spark_kafkalite.security.keytabs import KEYTAB, KEYTAB_SETTINGS, named_keytab, with_keytab
from spark_kafkalite.spark.conditions import INVALID_OPTION, SparkConditionError, option_error

_STORES: Final = ("ssl.keystore.location", "ssl.truststore.location")
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
TOKEN_FILES: Final = ("sasl.token.file", _TOKEN_URL)


def located(settings: Mapping[str, str], *, has_token: bool = False) -> dict[str, str]:
    """Return the settings with the paths at which this process finds the files.

    ``has_token``: the task carries a token, which is used if no file holds one.
    Raises SparkConditionError naming the option of a file that is neither at its path nor shipped.
    """
    found = dict(settings)
    protocol = settings.get("security.protocol", "").strip().upper()
    # Without effect, others need not be there: the client warns of them.
    needed = (*(_STORES if protocol.endswith("SSL") else ()), *(TOKEN_FILES if protocol.startswith("SASL") else ()))
    if protocol.startswith("SASL") and settings.get("sasl.mechanism", "GSSAPI") == "GSSAPI":
        needed += KEYTAB_SETTINGS
    for name in needed:
        value = settings.get(name, "").strip()
        path = _path_in(name, value)
        if not path or os.path.exists(path):
            continue
        shipped = shipped_file(path)
        if shipped is not None:
            found[name] = _with_path(name, value, path, shipped)
        elif name in KEYTAB_SETTINGS:
            raise _missing_keytab(name, path)
        elif name in _STORES or not has_token:
            raise _missing(name, value, path)
    return found


def shipped_file(name: str) -> str | None:
    """Return where a file of this last name, shipped by Spark, lies in this process's world; None for none."""
    # A process that is part of no Spark application has not loaded this.
    module = sys.modules.get("pyspark.core.files")
    if module is None:
        return None
    files = module.SparkFiles
    if not files._is_running_on_worker:
        from pyspark.core.context import SparkContext

        if SparkContext._active_spark_context is None:
            return None
    # On an executor the directory is ".".
    path = os.path.abspath(os.path.join(files.getRootDirectory(), os.path.basename(name)))
    return path if os.path.isfile(path) else None


def _path_in(name: str, value: str) -> str:
    """Return the path that a setting names, an empty text for none."""
    if name in KEYTAB_SETTINGS:
        return named_keytab(name, value)
    if name != _TOKEN_URL:
        return value
    return unquote(urlsplit(value).path) if value.lower().startswith("file:") else ""


def _with_path(name: str, value: str, path: str, shipped: str) -> str:
    """Return the setting's value with the path of the shipped file in the place of ``path``."""
    if name in KEYTAB_SETTINGS:
        return with_keytab(name, value, shipped)
    return shipped if name != _TOKEN_URL else f"file://{quote(shipped)}"


def _missing_keytab(setting: str, path: str) -> SparkConditionError:
    its = "" if setting == KEYTAB else f"its keyTab is {path}; "
    return option_error(
        INVALID_OPTION,
        f"kafka.{setting}",
        path,
        f"{its}there is no such keytab on {os.uname().nodename}, and none of its name was shipped: ship it with "
        "spark-submit --files KEYTAB or SparkContext.addFile. What spark.kerberos.keytab names does not reach the "
        "Python workers of executors",
    )


def _missing(setting: str, value: str, path: str) -> SparkConditionError:
    name = shown_value(setting, os.path.basename(path))
    return option_error(
        INVALID_OPTION,
        f"kafka.{setting}",
        value,
        f"there is no such file on {os.uname().nodename}, and none named {name} was shipped; it must be at that path "
        "on the driver, and on executors too, unless spark-submit --files or SparkContext.addFile ships it there; "
        "correct the path",
    )
