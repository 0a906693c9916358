"""Hadoop's client in a JVM of its own, which starts in a third of the time that Spark's own start takes.

The JVM has the jars of Spark, and the configuration that Spark would give to a session: the directories that
``HADOOP_CONF_DIR`` and ``YARN_CONF_DIR`` name, Spark's own, and ``spark.hadoop.*`` of ``spark-defaults.conf``. If
something is configured that only ``spark-submit`` applies, such as packages to load or a keytab to log in by, then
``spark-submit`` starts the JVM (:func:`needs_spark_submit`). There is no session in either.

Python reaches the JVM through a port of the loopback interface, with a token that the JVM makes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs.program.session import JobFailed, is_submitted
from spark_kafkalite.settings import read_properties

DEFAULTS: Final = "spark-defaults.conf"
# A script that spark-submit runs first. It may set any variable.
ENVIRONMENT: Final = "spark-env.sh"
_OF_SUBMIT: Final = ("spark.jars", "spark.driver.extra", "spark.kerberos.")
_HADOOP: Final = "spark.hadoop."
_CONFIGURATIONS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_OPTIONS: Final = (
    # It lives for some seconds on one thread, for which these start fastest.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # As Spark does, for Hadoop's Kerberos. Source: org.apache.spark.launcher.JavaModuleOptions.
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)


class HadoopClient(NamedTuple):
    """A JVM, as Py4J sees it, and Hadoop's configuration in it."""

    jvm: Any
    configuration: Any


def configuration_directory(variables: Mapping[str, str]) -> Path | None:
    """Return the directory of Spark's configuration files, as Spark's own scripts find it. None without PySpark."""
    if variables.get("SPARK_CONF_DIR"):
        return Path(variables["SPARK_CONF_DIR"])
    home = _home(variables)
    return None if home is None else home / "conf"


def _home(variables: Mapping[str, str]) -> Path | None:
    if variables.get("SPARK_HOME"):
        return Path(variables["SPARK_HOME"])
    package = find_spec("pyspark")
    return None if package is None or package.origin is None else Path(package.origin).parent


def spark_defaults(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of ``spark-defaults.conf``; none if there is no such file. Raises ConfigError."""
    directory = configuration_directory(variables)
    return {} if directory is None or not (directory / DEFAULTS).exists() else read_properties(directory / DEFAULTS)


def needs_spark_submit(variables: Mapping[str, str]) -> bool:
    """Return whether something is configured that only ``spark-submit`` applies to a JVM."""
    directory = configuration_directory(variables)
    if variables.get("PYSPARK_SUBMIT_ARGS") or (directory is not None and (directory / ENVIRONMENT).exists()):
        return True
    try:
        return any(name.startswith(_OF_SUBMIT) for name in spark_defaults(variables))
    except ConfigError:
        # Spark reports what is wrong with the file.
        return True


@contextmanager
def hadoop_client() -> Iterator[HadoopClient]:
    """Start a JVM with Hadoop's client, which ends with the block.

    With a session, or as the driver of spark-submit, use the JVM that runs already; it stays. Raises JobFailed if there
    is no Java, and what PySpark raises if spark-submit fails.
    """
    from pyspark import SparkContext, java_gateway

    context: Any = SparkContext._active_spark_context
    if context is not None:
        yield HadoopClient(context._jvm, context._jsc.hadoopConfiguration())
    elif is_submitted() or needs_spark_submit(os.environ):
        # Ends with this process.
        gateway: Any = java_gateway.launch_gateway()  # type: ignore[no-untyped-call]
        spark = gateway.jvm.org.apache.spark
        yield HadoopClient(gateway.jvm, spark.deploy.SparkHadoopUtil.get().newConfiguration(spark.SparkConf()))
    else:
        with _own_gateway(os.environ) as gateway:
            configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
            for name, value in spark_defaults(os.environ).items():
                if name.startswith(_HADOOP):
                    configuration.set(name.removeprefix(_HADOOP), value)
            yield HadoopClient(gateway.jvm, configuration)


@contextmanager
def _own_gateway(variables: Mapping[str, str]) -> Iterator[Any]:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    home = _home(variables)
    jars = [] if home is None else sorted((home / "jars").glob("py4j-*.jar"))
    if not jars:
        raise JobFailed(f"there are no jars of Spark in {home}/jars: unset SPARK_HOME, or set it to a Spark with jars")
    configurations = (str(configuration_directory(variables)), *(variables.get(name) for name in _CONFIGURATIONS))
    places = [*configurations, f"{jars[0].parent}/*", variables.get("SPARK_DIST_CLASSPATH")]
    try:
        port, token, process = launch_gateway(
            jarpath=str(jars[0]),
            classpath=os.pathsep.join(place for place in places if place),
            javaopts=list(_OPTIONS),
            redirect_stderr=sys.__stderr__,
            # By JAVA_HOME.
            java_path=None,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except (OSError, ValueError) as error:
        java = f"{variables['JAVA_HOME']}/bin/java" if variables.get("JAVA_HOME") else "java"
        raise JobFailed(f"{java} does not start ({error}): install Java, and set JAVA_HOME to its directory") from error
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
