import pytest

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.declarations import READER_OPTIONS
from spark_kafkalite.spark.options.options import reader_options, writer_options
from spark_kafkalite.spark.options.positions import AT_EARLIEST, AT_LATEST, Position, PositionKind, Positions

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def read(**given: str):
    return reader_options({**SERVERS, "subscribe": "t", **given})


def refusal(ask, *args, **kwargs) -> str:
    with pytest.raises(SparkConditionError) as caught:
        ask(*args, **kwargs)
    last_line = str(caught.value).splitlines()[-1]
    assert last_line.startswith(f"[{caught.value.condition}] ")
    return last_line


def test_names_are_case_insensitive_as_spark_hands_them_over():
    options = reader_options(
        {**SERVERS, "SUBSCRIBE": "a, b,,a", "maxoffsetspertrigger": "10", "includeheaders": "TRUE"}
    )
    assert options.subscription.topics == ("a", "b")
    assert options.max_offsets_per_trigger == 10
    assert options.include_headers


def test_every_declared_option_has_a_text():
    assert all(setting.doc for setting in READER_OPTIONS)


def test_bootstrap_servers_work_without_prefix_and_are_required():
    assert reader_options({"bootstrap.servers": "h:1", "subscribe": "t"}).client == {"bootstrap.servers": "h:1"}
    assert refusal(reader_options, {"subscribe": "t"}) == (
        "[KAFKALITE_INVALID_OPTION] kafka.bootstrap.servers=(not set): name at least one broker as host:port; there is "
        "no default"
    )


def test_an_unknown_option_names_the_nearest():
    text = refusal(read, startingOffset="earliest")
    assert text == (
        "[KAFKALITE_UNKNOWN_OPTION] startingOffset=earliest: there is no such option; did you mean startingOffsets?"
    )


def test_a_missing_prefix_is_explained():
    text = refusal(reader_options, {**SERVERS, "subscribe": "t", "fetch.min.bytes": "1"})
    assert text.startswith("[KAFKALITE_UNKNOWN_OPTION] fetch.min.bytes=1: ")


def test_what_is_known_and_not_built_is_refused():
    assert refusal(read, exactlyOnce="true").startswith("[KAFKALITE_UNSUPPORTED_OPTION] exactlyOnce=true: ")


@pytest.mark.parametrize("setting", SECURITY_SETTINGS, ids=lambda setting: setting.name)
def test_security_settings_are_the_clients(setting):
    for options in (read, lambda **given: writer_options({**SERVERS, "topic": "t", **given})):
        assert options(**{f"kafka.{setting.name}": "x"}).client[setting.name] == "x"


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.kerberos.kinit.cmd",
        "kafka.ssl.provider",
        "kafka.ssl.engine.factory.class",
        "kafka.security.providers",
    ],
)
def test_security_settings_of_the_jvm_pass_to_the_client_which_warns(name):
    assert read(**{name: "x"}).client[name.removeprefix("kafka.")] == "x"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("kafka.ssl.truststore.locaton", "kafka.ssl.truststore.location"),
        ("kafka.security.protocl", "kafka.security.protocol"),
        ("kafka.sasl.jass.config", "kafka.sasl.jaas.config"),
        # What the same is called in other clients, librdkafka's and kafka-python's.
        ("kafka.ssl.ca.location", "kafka.ssl.truststore.location"),
        ("kafka.ssl.key.location", "kafka.ssl.keystore.location"),
        ("kafka.ssl.cafile", "kafka.ssl.truststore.location"),
        ("kafka.sasl.plain.password", "kafka.sasl.password"),
    ],
)
def test_a_misspelt_security_setting_names_the_nearest_and_is_not_ignored(name, near):
    text = refusal(read, **{name: "x"})
    wrong = f"there is no such setting of clients; did you mean {near}?"
    assert text == f"[KAFKALITE_UNKNOWN_OPTION] {name}=*********(redacted): {wrong}"


def test_a_token_file_is_the_clients_setting():
    assert read(tokenFile="/run/token").client["sasl.token.file"] == "/run/token"
    assert writer_options({**SERVERS, "topic": "t", "tokenfile": "/run/t"}).client["sasl.token.file"] == "/run/t"
    read(tokenFile="/run/token", **{"kafka.sasl.token.file": "/run/token"})
    text = refusal(read, tokenFile="/run/token", **{"kafka.sasl.token.file": "/run/other"})
    assert text.startswith("[KAFKALITE_INVALID_OPTION] tokenFile=")
    assert text.endswith(": kafka.sasl.token.file=/run/other differs from it; give one of them")


def test_jvm_only_options_pass_and_are_noted():
    notes = read(groupIdPrefix="p", **{"kafka.group.id": "g", "kafka.partitioner.class": "c"}).notes
    assert notes[0] == "option groupIdPrefix has no effect: reading never joins a consumer group"
    assert notes[1].startswith("option kafka.group.id has no effect: ")
    assert notes[2:] == ("option kafka.partitioner.class has no effect: it is for clients on the JVM",)


def test_an_option_of_the_other_direction_passes_and_is_noted():
    assert read(topic="out").notes == ("option topic is for the Spark sink and has no effect on the Spark source",)
    notes = writer_options({**SERVERS, "topic": "t", "startingOffsets": "earliest"}).notes
    assert notes == ("option startingOffsets is for the Spark source and has no effect on the Spark sink",)


def test_a_setting_that_no_client_knows_is_noted_with_the_nearest_known_one():
    assert read(**{"kafka.fetch.max.byte": "1"}).notes == (
        "option kafka.fetch.max.byte is unknown and has no effect; did you mean kafka.fetch.max.bytes?",
    )
    notes = writer_options({**SERVERS, "topic": "t", "kafka.lingerms": "1", "kafka.qqqq": "1"}).notes
    assert notes == (
        "option kafka.lingerms is unknown and has no effect; did you mean kafka.linger.ms?",
        "option kafka.qqqq is unknown and has no effect",
    )


def test_options_of_streams_are_noted_in_a_batch():
    given = {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1m",
             "newPartitionStart": "earliest"}  # fmt: skip
    assert read(**given).batch_notes() == [f"option {name} has no effect on a batch read" for name in given]
    assert read(**given).stream_notes() == []


def test_sparks_own_options_pass():
    assert writer_options({**SERVERS, "topic": "t", "checkpointlocation": "/c"}).topic == "t"


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
def test_client_settings_that_the_source_forbids(name):
    assert refusal(read, **{f"kafka.{name}": "x"}).startswith(f"[KAFKALITE_INVALID_OPTION] kafka.{name}=x: not allowed")


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer"])
def test_client_settings_that_the_sink_forbids(name):
    text = refusal(writer_options, {**SERVERS, "topic": "t", f"kafka.{name}": "x"})
    assert text.startswith(f"[KAFKALITE_INVALID_OPTION] kafka.{name}=x: not allowed")


@pytest.mark.parametrize(
    "name", ["kafka.sasl.jass.config", "kafka.ssl.keystore.pasword", "kafka.ssl.key", "sasl_secret"]
)
def test_secrets_are_redacted(name):
    text = refusal(read, **{name: 'org.x.Plain required password="hunter2";'})
    assert "hunter2" not in text
    assert f"{name}=*********(redacted): " in text


def test_a_secret_under_a_misspelt_name_is_redacted():
    assert "hunter2" not in refusal(read, subscibe='Plain required password="hunter2";')
    for name in ("kafka.sasl.pasword", "kafka.ssl.keystore.passwrd", "sasl.pasword", "sasl_passwrd", "pasword"):
        assert "hunter2" not in refusal(read, **{name: "hunter2"}), name


@pytest.mark.parametrize("given", [{"subscribe": "t,bad name"}, {"assign": '{"bad name":[0]}'}])
def test_a_topic_name_that_cannot_be_is_refused_before_a_broker_is_asked(given):
    text = refusal(reader_options, {**SERVERS, **given})
    assert text.startswith(
        f"[KAFKALITE_INVALID_OPTION] {next(iter(given))}={next(iter(given.values()))}: Topic name is invalid: "
    )
    assert text.endswith("correct the name")


def test_a_path_is_answered_with_how_topics_are_named():
    assert refusal(read, path="events").endswith("leave it out and name topics with the option subscribe")
    assert "or the column topic" in refusal(writer_options, {**SERVERS, "path": "events"})


def test_words_are_read_in_any_case_and_blanks_around_values_do_not_count():
    given = {"startingOffsets": " Earliest ", "startingOffsetsByTimestampStrategy": " LATEST "}
    assert read(**given).starting_for(streaming=True).positions == Positions(AT_EARLIEST)
    assert read(**given).latest_when_no_timestamp
    assert not read().latest_when_no_timestamp
    assert read(endingOffsets="LATEST").ending_for_batch().positions == Positions(AT_LATEST)
    assert reader_options({**SERVERS, "subscribePattern": " ^t.* "}).subscription.pattern == "^t.*"
    assert writer_options({**SERVERS, "topic": " t "}).topic == "t"


def test_a_misspelt_place_to_start_is_told_the_words_that_there_are():
    text = refusal(read, startingOffsets="earlist")
    assert "startingOffsets=earlist: neither earliest, latest, last:N nor committed, and not a JSON object" in text


@pytest.mark.parametrize("twice", ['{"t":{"0":1,"1":2,"0":3}}', '{"t":{"0":1},"t":{"1":2}}', '{"t":{"0":1,"00":2}}'])
def test_a_partition_that_is_named_twice_is_refused(twice):
    assert "is named twice" in refusal(read, startingOffsets=twice)


def test_a_value_with_line_breaks_stays_on_the_last_line():
    assert refusal(read, startingOffsets="{\n\n}x").endswith("{}x: not a JSON object; write it as in") is False
    assert "\n" not in refusal(read, nope="a\nb")


@pytest.mark.parametrize(
    "given", [{}, {"subscribe": "t", "assign": '{"t":[0]}'}, {"subscribePattern": "t", "subscribe": "t"}]
)
def test_exactly_one_subscription_is_needed(given):
    text = refusal(reader_options, {**SERVERS, **given})
    assert "set exactly one of subscribe, subscribePattern and assign" in text


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": " , "},
        {"subscribePattern": " "},
        {"subscribePattern": "("},
        {"assign": "t"},
        {"assign": "{}"},
        {"assign": '{"t":0}'},
        {"assign": '{"t":["0"]}'},
        {"assign": '{"t":[-1]}'},
        {"assign": '{"t":[true]}'},
        {"assign": "[" * 100_000},
    ],
)
def test_bad_subscriptions_are_refused(given):
    refusal(reader_options, {**SERVERS, **given})


def test_assign():
    options = reader_options({**SERVERS, "assign": '{"t":[1,0,1]}'})
    assert options.subscription.partitions == (T0, T1)


def test_starting_defaults_depend_on_the_mode():
    assert read().starting_for(streaming=True).positions == Positions(AT_LATEST)
    assert read().starting_for(streaming=False).positions == Positions(AT_EARLIEST)
    assert read().ending_for_batch().positions == Positions(AT_LATEST)


def test_starting_offsets_as_json_with_sentinels():
    spec = read(startingOffsets='{"t":{"0":23,"1":-2}}').starting_for(streaming=False)
    assert spec.positions == Positions(partitions={T0: Position(PositionKind.OFFSET, 23), T1: AT_EARLIEST})


def test_places_for_whole_topics_and_for_all_others():
    text = '{"t":{"0":23,"*":"latest"},"u":"last:5","*":-2}'
    positions = read(startingOffsets=text).starting_for(streaming=True).positions
    assert positions.of(T0) == Position(PositionKind.OFFSET, 23)
    assert positions.of(T1) == AT_LATEST
    assert positions.of(TopicPartition("u", 7)) == Position(PositionKind.LAST, 5)
    assert positions.of(TopicPartition("v", 0)) == AT_EARLIEST
    times = read(startingOffsetsByTimestamp='{"t":{"0":6,"*":"-1h"},"*":"1970-01-01T00:00:01Z"}')
    positions = times.starting_for(streaming=True).positions
    assert positions.of(T0) == Position(PositionKind.TIME, 6)
    assert positions.of(T1) == Position(PositionKind.AGO, 3_600_000)
    assert positions.of(TopicPartition("v", 0)) == Position(PositionKind.TIME, 1000)


def test_everywhere_at_once():
    last = read(startingOffsets=" LAST:1000 ").starting_for(streaming=False)
    assert last.positions == Positions(Position(PositionKind.LAST, 1000))
    assert read(startingOffsets='{"*":"earliest"}').starting_for(streaming=False).positions == Positions(AT_EARLIEST)


@pytest.mark.parametrize("value", ["last:5", '{"t":{"0":"last:5"}}', '{"*":"last:5"}'])
def test_a_batch_ends_at_no_count(value):
    assert "cannot end so many offsets before its end (last:N)" in refusal(read, endingOffsets=value)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("0", Position(PositionKind.TIME, 0)),
        ("1700000000000", Position(PositionKind.TIME, 1_700_000_000_000)),
        ("2026-01-31T12:00:00Z", Position(PositionKind.TIME, 1_769_860_800_000)),
        ("2026-01-31T12:00:00", Position(PositionKind.TIME, 1_769_860_800_000)),
        ("2026-01-31 13:00:00+01:00", Position(PositionKind.TIME, 1_769_860_800_000)),
        ("-10m", Position(PositionKind.AGO, 600_000)),
        ("-2 d", Position(PositionKind.AGO, 172_800_000)),
    ],
)
def test_times(text, position):
    assert read(startingTimestamp=text).starting_for(streaming=True).positions == Positions(position)
    assert read(endingTimestamp=text).ending_for_batch().positions == Positions(position)


def test_one_time_wins_over_times_and_times_over_offsets():
    given = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":6}}',
        "startingOffsets": "earliest",
    }
    assert read(**given).starting_for(streaming=True).positions == Positions(Position(PositionKind.TIME, 5))
    assert "option startingOffsets is ignored, because startingTimestamp is set and wins over it" in read(**given).notes
    del given["startingTimestamp"]
    starting = read(**given).starting_for(streaming=True)
    assert starting.positions == Positions(partitions={T0: Position(PositionKind.TIME, 6)})


def test_of_ends_one_time_wins_over_times_and_times_over_offsets():
    given = {"endingTimestamp": "5", "endingOffsetsByTimestamp": '{"t":{"0":6}}', "endingOffsets": "latest"}
    assert read(**given).ending_for_batch().positions == Positions(Position(PositionKind.TIME, 5))
    assert read(**given).notes == tuple(
        f"option {name} is ignored, because endingTimestamp is set and wins over it"
        for name in ("endingOffsetsByTimestamp", "endingOffsets")
    )
    del given["endingTimestamp"]
    assert read(**given).ending_for_batch().positions == Positions(partitions={T0: Position(PositionKind.TIME, 6)})


@pytest.mark.parametrize("value", ["latest", "LATEST", '{"t":{"0":-1}}', '{"t":"latest"}', '{"t":{"*":-1}}'])
def test_a_batch_cannot_start_at_the_end(value):
    assert "a batch cannot start at the end" in refusal(read(startingOffsets=value).starting_for, streaming=False)


@pytest.mark.parametrize("value", ["earliest", '{"t":{"0":-2}}', '{"t":"earliest"}', '{"*":-2}'])
def test_a_batch_cannot_end_at_the_start(value):
    assert "cannot end at earliest" in refusal(read, endingOffsets=value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name):
    options = read(**{name: '{"t":{"0":5}}'})
    expected = f'[KAFKALITE_INVALID_OPTION] {name}={{"t":{{"0":5}}}}: a stream has no end'
    assert refusal(options.check_streaming).startswith(expected)


def test_an_ending_timestamp_of_a_stream_is_noted():
    options = read(endingTimestamp="5")
    options.check_streaming()
    assert options.stream_notes() == ["option endingTimestamp has no effect on a stream"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("minPartitions", str(2**31)),
        ("maxRecordsPerPartition", "0"),
        ("maxOffsetsPerTrigger", "-5"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "1.5g"),
        ("maxBytesPerTrigger", "10 gib"),
        ("maxBytesPerTrigger", "9000000000000000000k"),
        ("maxBytesPerPartition", "-1"),
        ("failOnDataLoss", "maybe"),
        ("includeHeaders", "1"),
        ("startingTimestamp", "yesterday"),
        ("newPartitionStart", "last:5"),
        ("newPartitionStart", "soon"),
        ("missingTopic", "skip"),
        ("startingTimestamp", "-10"),
        ("startingTimestamp", "-10y"),
        ("startingTimestamp", "1969-12-31T23:59:59Z"),
        ("startingTimestamp", str(2**63)),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("maxTriggerDelay", "soon"),
        ("startingOffsets", "newest"),
        ("startingOffsets", '{"t":{"0":-3}}'),
        ("startingOffsets", '{"t":{"0":"5"}}'),
        ("startingOffsets", '{"t":{"x":5}}'),
        ("startingOffsets", '{"t":[5]}'),
        ("startingOffsets", '{"t":"newest"}'),
        ("startingOffsets", '{"t":{"*":"-10m"}}'),
        ("startingOffsets", '{"*":{"0":5}}'),
        ("startingOffsets", '{"t":true}'),
        ("startingOffsets", "{}"),
        ("startingOffsets", "last:"),
        ("startingOffsets", "last:-5"),
        ("startingOffsetsByTimestamp", '{"t":"earliest"}'),
        ("startingOffsets", '{"t":{"0":9223372036854775808}}'),
        ("startingOffsetsByTimestamp", '{"t":{"0":-1}}'),
    ],
)
def test_bad_values_name_the_option_and_the_value(name, value):
    assert refusal(read, **{name: value}).startswith(f"[KAFKALITE_INVALID_OPTION] {name}={value}: ")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("100b", 100),
        ("64k", 64 << 10),
        ("64KB", 64 << 10),
        (" 3m ", 3 << 20),
        ("10g", 10 << 30),
        ("2T", 2 << 40),
    ],
)
def test_sizes_are_written_as_spark_writes_them(text, size_bytes):
    assert read(maxBytesPerTrigger=text).max_bytes_per_trigger == size_bytes
    assert read(maxBytesPerPartition=text).max_bytes_per_partition == size_bytes


def test_a_minimum_above_the_maximum_is_refused():
    assert "must not be above maxOffsetsPerTrigger=5" in refusal(
        read, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5"
    )


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("300s", 300_000), ("7", 7), ("1 H", 3_600_000), ("2d", 172_800_000)]
)
def test_trigger_delays(text, ms):
    assert read(maxTriggerDelay=text).max_trigger_delay_ms == ms


def test_isolation_level_is_seen():
    assert read(**{"kafka.isolation.level": "read_committed"}).read_committed
    assert not read().read_committed


def test_a_sink_topic_must_be_legal():
    assert refusal(writer_options, {**SERVERS, "topic": "a b"}).startswith("[KAFKALITE_INVALID_OPTION] topic=a b: ")


def test_how_long_brokers_may_be_away_is_also_how_long_a_task_waits():
    assert (read().unreachable_timeout_ms, read().read_timeout_ms) == (None, 120_000)
    options = read(brokersUnreachableTimeout="10m")
    assert (options.unreachable_timeout_ms, options.read_timeout_ms) == (600_000, 600_000)
    assert read(brokersUnreachableTimeout="10m", **{"kafkaConsumer.pollTimeoutMs": "5"}).read_timeout_ms == 5


def test_how_long_brokers_may_be_away_is_how_long_a_producer_tries():
    def timeouts(**given: str) -> tuple[str | None, str | None]:
        client = writer_options({**SERVERS, "topic": "t", **given}).client
        return client.get("max.block.ms"), client.get("delivery.timeout.ms")

    assert timeouts() == (None, None)
    assert timeouts(brokersUnreachableTimeout="10m") == ("600000", "600000")
    # A delivery takes a request or more.
    assert timeouts(brokersUnreachableTimeout="5s") == ("5000", "120000")
    assert timeouts(brokersUnreachableTimeout="10m", **{"kafka.max.block.ms": "7"}) == ("7", "600000")


@pytest.mark.parametrize("value", ["", "soon", "0s", "-1s", "30d"])
def test_how_long_brokers_may_be_away_is_checked(value):
    text = refusal(read, brokersUnreachableTimeout=value)
    assert text.startswith(f"[KAFKALITE_INVALID_OPTION] brokersUnreachableTimeout={value}: ")
