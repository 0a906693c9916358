"""Reads published data files with Spark, and matches Spark's paths with those of the destination."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from spark_kafkalite.spark.jobs.destination.files import Files
from spark_kafkalite.spark.jobs.formats.decoding import file_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Those that Spark reads without a package of its own, with the offsets in columns.
FORMATS: Final = ("parquet", "orc", "json")
# Java writes file:/x and file:///x for the same file.
SCHEME_AND_HOST: Final = "^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?"


def read_files(
    spark: SparkSession, file_format: str, paths: Iterable[str], value: str = "bytes", value_schema: str | None = None
) -> DataFrame:
    """Return the records of files of one format; ``paths`` begin with the destination's root.

    ``value`` and ``value_schema`` are the form of values by the load's layout.
    """
    reader = spark.read.format("text" if file_format == "txt" else file_format)
    # Lines of JSON do not say which of their texts are bytes.
    if file_format == "json":
        reader = reader.schema(file_schema(value, value_schema))
    return reader.load(list(paths))


def path_of_uri(uri: str) -> str:
    """Return the path of what Spark gives as ``_metadata.file_path``, which is a URI: without scheme and host."""
    return re.sub(SCHEME_AND_HOST, "", unquote(uri))


def path_below(files: Files, path: str) -> str:
    """Return a file of the destination as :func:`path_of_uri` does."""
    return re.sub(SCHEME_AND_HOST, "", f"{files.root}/{path}")
