"""The package that Spark discovers: Spark imports every top-level package whose name starts with ``pyspark_`` and looks
for DefaultSource in it.

An exception here would break the look-up of every Python data source of the application, not only ours. So the import
never raises. It keeps the error, and ``format("kafkalite")`` raises that when it is used.
"""

from __future__ import annotations

import traceback
from typing import Any

try:
    from spark_kafkalite.spark.source import KafkaliteDataSource as DefaultSource
except Exception as error:
    # As text, because this class is pickled to other processes.
    _REASON = traceback.format_exc()
    # What is missing says itself what to do.
    _LAST_LINE = (
        str(error)
        if str(error).startswith("[KAFKALITE_")
        else "[KAFKALITE_NOT_IMPORTABLE] spark-kafkalite is installed but cannot be imported by Spark's Python (see "
        "above); install its wheel again in the environment of that Python"
    )
    try:
        from pyspark.sql.datasource import DataSource

        class DefaultSource(DataSource):  # type: ignore[no-redef]
            """Replaces a source that could not be imported, and raises the reason when it is used."""

            @classmethod
            def name(cls) -> str:
                return "kafkalite"

            def _refuse(self, *_: Any, **__: Any) -> Any:
                raise RuntimeError(f"{_REASON}\n{_LAST_LINE}")

            schema = reader = streamReader = writer = streamWriter = _refuse  # noqa: N815

    except Exception:
        # No usable PySpark: then nobody looks for a data source either.
        pass
