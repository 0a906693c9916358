"""What Spark discovers: it imports every top-level package whose name starts with ``pyspark_`` and looks for
DefaultSource.

An exception here would break the look-up of every Python data source of the application, not only ours. So nothing is
ever raised on import: what went wrong is kept, and told to whoever uses ``format("kafkalite")``.
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
            """Stands in for the source that could not be imported, and says why when it is used."""

            @classmethod
            def name(cls) -> str:
                return "kafkalite"

            def _refuse(self, *_: Any, **__: Any) -> Any:
                raise RuntimeError(f"{_REASON}\n{_LAST_LINE}")

            schema = reader = streamReader = writer = streamWriter = _refuse  # noqa: N815

    except Exception:
        # No usable PySpark: then nobody looks for a data source either.
        pass
