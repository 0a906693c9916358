"""Which error of an admin call is raised when its time is over."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import AdvertisedUnreachable, BrokerUnreachable, NotController
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("first", [AdvertisedUnreachable("broker 1 at a:1"), NotController("of old")])
def test_a_refresh_that_is_cut_short_does_not_hide_a_wrong_address(first: Any) -> None:
    def ask() -> Any:
        raise first

    cut_short = BrokerUnreachable("no broker answers; tried broker 1")
    with (
        Admin(bootstrap_servers="127.0.0.1:1") as admin,
        mock.patch.object(ClusterClient, "refresh", side_effect=cut_short),
        pytest.raises(BrokerUnreachable) as raised,
    ):
        admin._retried(ask, Deadline.after_ms(round(PATIENCE_S * 1000)))
    assert raised.value is (first if isinstance(first, AdvertisedUnreachable) else cut_short)
