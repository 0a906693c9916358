"""Reads published data files with Spark, and matches Spark's paths with those of the destination."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from spark_kafkalite.jobs.formats.decoding import file_schema
from spark_kafkalite.manifests.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

# Those that Spark reads without a package of its own, with the offsets in columns.
FORMATS: Final = ("parquet", "orc", "json")
# Java writes file:/x and file:///x for the same file.
SCHEME_AND_HOST: Final = "^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?"


def read_files(
    spark: SparkSession, file_format: str, paths: Iterable[str], value_type: DataType | None = None
) -> DataFrame:
    """Return the records of files of one format; ``paths`` begin with the destination's root.

    ``value_type`` is the type that the column ``value`` gets; a field that a file does not have is null. None leaves
    the columns to the files; they must have the same ones, and values of JSON are bytes.
    """
    from pyspark.sql.types import BinaryType

    if file_format == "txt":
        return spark.read.format("text").load(list(paths))
    reader = spark.read.format(file_format)
    # Lines of JSON do not say which of their texts are bytes.
    if value_type is not None or file_format == "json":
        reader = reader.schema(file_schema(value_type or BinaryType()))
    return reader.load(list(paths))


def path_of_uri(uri: str) -> str:
    """Return the path of what Spark gives as ``_metadata.file_path``, which is a URI: without scheme and host."""
    return re.sub(SCHEME_AND_HOST, "", unquote(uri))


def path_below(files: Files, path: str) -> str:
    """Return a file of the destination as :func:`path_of_uri` does."""
    return re.sub(SCHEME_AND_HOST, "", f"{files.root}/{path}")
