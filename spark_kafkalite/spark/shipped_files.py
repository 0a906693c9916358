"""Where the files that client settings name are: by path, else among those that Spark ships to every host.

``--files`` and ``SparkContext.addFile`` copy a file to the driver and to each executor, under its last name in a
directory that differs from host to host. So each process looks for itself, when it makes a client. A shipped copy is
never renewed: a store is changed by shipping it again to a new application, and a token in it lives as long as it says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from spark_kafkalite.redaction import REDACTED, is_secret
from spark_kafkalite.spark.conditions import INVALID_OPTION, option_error

_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_FILES: Final = ("ssl.keystore.location", "ssl.truststore.location", "sasl.token.file")


def located(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the paths at which this process finds the files.

    Raises SparkConditionError naming the option of a file that is neither at its path nor shipped.
    """
    found = dict(settings)
    for name in _FILES:
        if settings.get(name, "").strip():
            found[name] = _found(name, settings[name], settings[name].strip())
    url = settings.get(_TOKEN_URL, "").strip()
    if url.lower().startswith("file:"):
        found[_TOKEN_URL] = f"file://{_found(_TOKEN_URL, url, unquote(urlsplit(url).path))}"
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


def _found(setting: str, value: str, path: str) -> str:
    if os.path.exists(path):
        return path
    shipped = shipped_file(path)
    if shipped is not None:
        return shipped
    name = REDACTED if is_secret(setting, value) else os.path.basename(path)
    raise option_error(
        INVALID_OPTION,
        f"kafka.{setting}",
        value,
        f"there is no such file on {os.uname().nodename}, and none named {name} was shipped; it must be at that path "
        "on the driver, and on executors too, unless spark-submit --files or SparkContext.addFile ships it there; "
        "correct the path",
    )
