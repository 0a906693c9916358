"""Recommends Unix sockets between Spark's JVM and its Python workers, which Spark has since 4.1 and leaves off.

Over TCP large reads and writes are slower. Tasks of the source and the sink do not wait for delayed acknowledgements
there (:mod:`.early_ack`); other tasks in Python may.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("spark_kafkalite.spark")

UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
RECOMMENDATION: Final = (
    f"{UNIX_SOCKETS} is off: set it to true when the session starts. Reads and writes get faster. Where the path of "
    "java.io.tmpdir is longer than 60 characters, as in containers of YARN, also set "
    "spark.python.unix.domain.socket.dir=/tmp"
)
_recommended = False


def lacks_unix_sockets(spark: SparkSession) -> bool:
    """Whether this Spark has Unix sockets for its Python workers, and this session does not use them.

    False for a session of Spark Connect: its server decides.
    """
    from spark_kafkalite.spark.pyspark_versions import HAS_UNIX_SOCKETS

    context: Any = getattr(spark, "_sc", None)
    if context is None or not HAS_UNIX_SOCKETS:
        return False
    return str(context.getConf().get(UNIX_SOCKETS, "false")).lower() != "true"


def recommend_unix_sockets(spark: SparkSession) -> None:
    """Log one line, once in a process, if the session lacks them."""
    global _recommended
    if not _recommended and lacks_unix_sockets(spark):
        _recommended = True
        _LOG.warning("%s", RECOMMENDATION)
