"""Without the JVM there are no tokens of Spark's; with it tests/spark has them."""

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.spark import fetch_token


def test_over_spark_connect_there_is_no_token_to_fetch() -> None:
    with pytest.raises(ConfigError, match="fetch_token needs classic Spark: over Spark Connect"):
        fetch_token(object(), "main")  # type: ignore[arg-type]
