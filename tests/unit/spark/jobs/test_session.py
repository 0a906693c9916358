"""The options of the command line that the jobs share."""

import click
import pytest

from spark_kafkalite.spark.jobs.session import open_admin, parse_client_options, sink_options, source_options


def test_a_client_setting_goes_to_the_clients_that_read_it(caplog: pytest.LogCaptureFixture) -> None:
    given = ("fetch.max.bytes=1000000", " linger.ms = 7", "request.timeout.ms=9000")
    options = parse_client_options(given, writes=True)
    cluster = {"kafka.bootstrap.servers": "h:1"}
    common = {**cluster, "kafka.request.timeout.ms": "9000"}
    assert source_options("h:1", options) == {**common, "kafka.fetch.max.bytes": "1000000"}
    assert sink_options("h:1", options) == {**common, "kafka.linger.ms": "7"}
    with open_admin("h:1", options):
        assert not caplog.records  # a warning of settings that an admin client does not know


@pytest.mark.parametrize(
    ("pair", "writes", "said"),
    [
        ("fetch.max.byte=3", False, "'fetch.max.byte' is no consumer setting; did you mean 'fetch.max.bytes'?"),
        ("linger.mss=3", True, "'linger.mss' is no consumer or producer setting; did you mean 'linger.ms'?"),
        ("batch.size=3", False, "'batch.size' is no consumer setting"),
        ("fetch.max.bytes", False, "'fetch.max.bytes' is not of the form NAME=VALUE"),
    ],
)
def test_an_option_that_no_client_of_the_job_reads_is_refused(pair: str, writes: bool, said: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        parse_client_options([pair], writes=writes)
    assert refused.value.message.startswith(said)
