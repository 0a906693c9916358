"""When a broker fetches the keys of tokens: at its start, in intervals, after failures, and for unknown ones."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.broker.authentication.token_keys import TokenKeys
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.security.http_request import URLS_VARIABLE
from spark_kafkalite.security.key_source import KeySource, KeysUnavailable
from spark_kafkalite.security.signing_keys import KeySet, SigningKey
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.manual_loop import ManualLoop, ManualThreads
from tests.patience import PATIENCE_S, wait_until_async

KEY = SigningKey("a key", ("RS256",))
SETTING = "sasl.oauthbearer.jwks.endpoint.url"


@dataclasses.dataclass
class Provider:
    """An identity provider: its keys, None while it is away, and when it was asked."""

    loop: asyncio.AbstractEventLoop
    keys: Mapping[str, tuple[SigningKey, ...]] | None
    asked_s: list[float] = dataclasses.field(default_factory=list)
    refresh_s: float = 3600.0
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0

    def check(self) -> None: ...

    def fetch(self) -> KeySet:
        self.asked_s.append(round(self.loop.time(), 1))
        if self.keys is None:
            raise KeysUnavailable("it is away")
        return KeySet(self.keys)


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    made = ManualLoop(ManualClock())
    yield made
    made.close()


def started(loop: ManualLoop, provider: Any) -> TokenKeys:
    threads: Any = ManualThreads(loop)
    keys = TokenKeys(provider, loop, threads)
    keys.start()
    return keys


def test_a_stranger_cannot_have_the_provider_asked_often(loop: ManualLoop) -> None:
    provider = Provider(loop, {"one": (KEY,)})
    keys = started(loop, provider)
    begun_s = loop.time()

    async def ask(count: int) -> list[Any]:
        return await asyncio.gather(*(keys.find(f"made-up-{number}") for number in range(count)))

    assert loop.run_until_complete(keys.find("one")) == (KEY,)
    assert not any(loop.run_until_complete(ask(300))) and len(provider.asked_s) == 1
    loop.run_for(10.0)
    # The next one may, and all that ask meanwhile wait for its answer.
    assert not any(loop.run_until_complete(ask(300))) and len(provider.asked_s) == 2
    provider.keys = {"two": (KEY,)}
    assert loop.run_until_complete(keys.find("two")) == ()
    loop.run_for(10.0)
    assert loop.run_until_complete(keys.find("two")) == (KEY,)
    # A key that the issuer has taken back is not known any more.
    assert loop.run_until_complete(keys.find("one")) == ()
    assert [round(at_s - begun_s) for at_s in provider.asked_s] == [0, 10, 20]


def test_keys_are_fetched_in_intervals_and_sooner_after_failures(
    loop: ManualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider(loop, None, backoff_max_s=1.0, refresh_s=100.0)
    begun_s = loop.time()
    keys = started(loop, provider)
    loop.run_for(4.0)
    waits_s = [0.0, 0.1, 0.3, 0.7, 1.5, 2.5, 3.5]
    assert [round(at_s - begun_s, 1) for at_s in provider.asked_s] == pytest.approx(waits_s)
    assert loop.run_until_complete(keys.find("one")) == ()
    assert "it is away; no client can authenticate by it" in caplog.text
    provider.keys = {"one": (KEY,)}
    loop.run_for(1.0)
    provider.asked_s.clear()
    loop.run_for(200.0)
    assert len(provider.asked_s) == 2
    # What is known stays in use.
    provider.keys = None
    loop.run_for(300.0)
    assert loop.run_until_complete(keys.find("one")) == (KEY,)
    keys.stop()
    provider.asked_s.clear()
    loop.run_for(1000.0)
    assert provider.asked_s == []


def test_a_client_that_leaves_does_not_end_the_fetch_of_others(loop: ManualLoop) -> None:
    keys = started(loop, Provider(loop, {"one": (KEY,)}))

    async def leave() -> None:
        leaving = asyncio.create_task(keys.find("one"))
        await asyncio.sleep(0)
        leaving.cancel()

    loop.run_until_complete(leave())
    assert loop.run_until_complete(keys.find("one")) == (KEY,)


def source(url: str, **options: str) -> KeySource:
    return KeySource.of(SETTING, url, options, refresh_s=1.0, backoff_s=1.0, backoff_max_s=1.0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        ("", "it is not JSON"),
        ('{"keys": []}', "it has no key that can be used"),
        ("x" * (1024 * 1024 + 1), "more than 1048576 bytes"),
    ],
)
def test_a_file_without_keys_stops_the_start(
    loop: ManualLoop, tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"{SETTING}=file://.*{problem}"):
        started(loop, source(f"file://{path}"))


@pytest.mark.parametrize(
    "url", ["http://idp.example/jwks", "ftp://x/y", "file://host/x", "https://u:p@idp.example/", "https:///x", "jwks"]
)
def test_urls_that_are_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=SETTING) as caught:
        source(url)
    assert "u:p" not in str(caught.value)
    monkeypatch.setenv(URLS_VARIABLE, "http://idp.example/jwks")
    if url.startswith("http://"):
        assert source(url).url == url


def test_tickets_are_checked_while_an_issuer_does_not_answer() -> None:
    """Also with one thread for each kind of work (num.io.threads=1)."""
    is_asked, answers = threading.Event(), threading.Event()

    class Hanging(Provider):
        def fetch(self) -> KeySet:
            is_asked.set()
            answers.wait(PATIENCE_S)
            return KeySet({"one": (KEY,)})

    async def run() -> None:
        loop = asyncio.get_running_loop()
        io = IoThreads(loop, 1)
        source: Any = Hanging(loop, None)
        keys = TokenKeys(source, loop, io)
        keys.start()
        try:
            waiting = asyncio.ensure_future(keys.find("one"))
            await wait_until_async(is_asked.is_set, "the issuer is asked")
            assert await io.run(answers.is_set, Lane.TICKETS) is False
            answers.set()
            assert await waiting == (KEY,)
        finally:
            answers.set()
            keys.stop()
            io.close()

    asyncio.run(run())
