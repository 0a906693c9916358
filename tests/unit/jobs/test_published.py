"""What read_published refuses before it looks at anything."""

import pytest

from spark_kafkalite.spark import read_published


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="on_missing='wran': must be fail or warn"):
        read_published(None, "d", on_missing="wran")  # type: ignore[arg-type]
