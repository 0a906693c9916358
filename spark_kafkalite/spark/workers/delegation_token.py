"""The delegation token that Spark itself has fetched for a cluster, in the form in which our clients take one.

With ``spark.kafka.clusters.ID.auth.bootstrap.servers`` Spark obtains tokens before an application starts, and renews
them. It keeps them among the credentials of Hadoop's user in the JVM, where no Python process sees them. Source:
org.apache.spark.kafka010.KafkaTokenUtil.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KIND: Final = "KAFKA_DELEGATION_TOKEN"
_SERVICE: Final = "kafka.server.delegation.token."


def fetch_token(spark: SparkSession, cluster_id: str) -> str:
    """Return the token as ``TOKENID:HMAC``, which the file of ``tokenFile`` holds, or the variable ``KAFKALITE_TOKEN``.

    ``cluster_id`` is the ID of ``spark.kafka.clusters.ID.*``. Raises ConfigError when Spark has no token of it, and for
    Spark Connect.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError(
            "fetch_token needs classic Spark: over Spark Connect the tokens are in another process. Call it there, or "
            "have an administrator create a token"
        )
    jvm: Any = spark.sparkContext._jvm
    credentials = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
    token = credentials.getToken(jvm.org.apache.hadoop.io.Text(f"{_SERVICE}{cluster_id}"))
    if token is None:
        services = [
            str(each.getService()) for each in credentials.getAllTokens().toArray() if str(each.getKind()) == _KIND
        ]
        known = ", ".join(sorted(service.removeprefix(_SERVICE) for service in services))
        raise ConfigError(
            f"cluster_id={cluster_id}: Spark has no delegation token of that cluster ("
            + (f"it has some of {known}" if known else "it has none of any")
            + f"); set spark.kafka.clusters.{cluster_id}.auth.bootstrap.servers, and submit with Spark's connector"
        )
    return f"{bytes(token.getIdentifier()).decode()}:{bytes(token.getPassword()).decode()}"
