"""How many connections may be opened, by a manual clock."""

from __future__ import annotations

from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.connection_rates import UNLIMITED, ConnectionRates
from spark_kafkalite.broker.quotas.limits import Limits
from spark_kafkalite.testing.manual_clock import ManualClock


class Bed:
    def __init__(self) -> None:
        self.clock, self.limits = ManualClock(), Limits()
        self.rates = ConnectionRates(self.clock.monotonic_s, Windows(), self.limits)

    def open(self, listener: str, rate: float, seconds: float) -> int:
        """Open connections as fast as may be, for some seconds; return how many."""
        until_s, opened = self.clock.monotonic_s() + seconds, 0
        while self.clock.monotonic_s() < until_s:
            delay_s = self.rates.delay_s(listener, rate)
            assert delay_s <= 1.0
            if delay_s:
                self.clock.advance(s=max(delay_s, 0.001))
            else:
                self.rates.accepted(listener, rate)
                opened += 1
        return opened


def test_a_listener_accepts_so_many_a_second() -> None:
    bed = Bed()
    assert 300 <= bed.open("L", 10, 30) <= 315
    # Each has its own; another rate holds at once.
    assert 55 <= bed.open("", 5, 10) <= 57
    assert 990 <= bed.open("L", 100, 10) <= 1110


def test_without_a_rate_nothing_is_counted() -> None:
    bed = Bed()
    for _ in range(1000):
        assert bed.rates.delay_s("", UNLIMITED) == 0
        bed.rates.accepted("", UNLIMITED)
    assert not bed.rates._of_listeners


def test_an_address_over_its_quota_waits_and_others_do_not() -> None:
    bed = Bed()
    assert bed.rates.address_delay_s("127.0.0.1") == 0
    bed.limits.take("ips/<default>", {"connection_creation_rate": "5"})
    bed.limits.take("ips/10.0.0.9", {"connection_creation_rate": "1000"})
    bed.rates.limits_changed()
    delays = [bed.rates.address_delay_s("::ffff:127.0.0.1") for _ in range(10)]
    assert delays[:6] == [0.0] * 6
    assert all(0 < each <= 1 for each in delays[6:])
    assert bed.rates.address_delay_s("10.0.0.9") == 0
    assert bed.rates.address_delay_s("127.0.0.2") == 0
    assert bed.rates.address_delay_s("fe80::1%eth0") == 0
    bed.clock.advance(s=1)
    assert bed.rates.address_delay_s("127.0.0.1") == 0
    bed.limits.take("ips/<default>", {})
    bed.rates.limits_changed()
    assert [bed.rates.address_delay_s("127.0.0.1") for _ in range(100)] == [0.0] * 100
