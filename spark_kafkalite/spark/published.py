"""``read_published``: a load destination as Spark sees it when it asks the manifests, not the directory listing.

A plain listing shows a run's files one by one while they move to their places. This reads exactly the files of the runs
that are complete: all of a run or nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafkalite.spark.jobs.files import files_for
from spark_kafkalite.spark.jobs.manifest import MANIFESTS, manifest_numbers, manifest_path, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_published(spark: SparkSession, path: str) -> DataFrame:
    """Return the records of every complete load run under ``path``, with the columns of the source.

    A run that has committed but not yet moved all its files is left out until it, or the next run, has. Raises
    FileNotFoundError when nothing has been published there.
    """
    files = files_for(spark, path)
    names: list[str] = []
    for number in manifest_numbers(files.names(MANIFESTS)):
        where = manifest_path(number)
        manifest = read_manifest(files.read(where), where)
        if not files.exists(manifest.staging):
            names += [f"{files.root}/{file.final}" for file in manifest.files]
    if not names:
        raise FileNotFoundError(f"{files.root}: no load run has been published here; see _kafkalite/manifests")
    return spark.read.parquet(*names)
