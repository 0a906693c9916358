"""Scrapers that share a page."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from spark_kafkalite.exposition import shared
from spark_kafkalite.exposition.shared import SharedPage


class Source:
    """Makes pages, when the test lets it; fails while ``error`` is set."""

    def __init__(self) -> None:
        self.made = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def make(self) -> int:
        self.made += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return self.made


async def turn() -> None:
    """Have every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_scrapers_at_the_same_time_get_one_page_and_one_that_leaves_takes_nothing_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "_FRESH_S", 1e9)

    async def run() -> None:
        source = Source()
        page = SharedPage(source.make)
        scrapers = [asyncio.ensure_future(page.get()) for _ in range(100)]
        await turn()
        scrapers[0].cancel()
        await turn()
        source.may_end.set()
        assert set(await asyncio.gather(*scrapers[1:])) == {1}
        with pytest.raises(asyncio.CancelledError):
            await scrapers[0]
        # A fresh one serves later scrapers, too.
        assert await page.get() == 1 and source.made == 1

    asyncio.run(run())


def test_an_old_page_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_FRESH_S", -1.0)

    async def run() -> None:
        source = Source()
        source.may_end.set()
        page = SharedPage(source.make)
        assert [await page.get(), await page.get()] == [1, 2]

    asyncio.run(run())


def test_a_failure_is_told_to_all_who_wait_and_is_not_kept() -> None:
    async def run() -> None:
        source = Source()
        source.error = ValueError("no broker")
        page = SharedPage(source.make)
        scrapers = [asyncio.ensure_future(page.get()) for _ in range(3)]
        await turn()
        source.may_end.set()
        found = await asyncio.gather(*scrapers, return_exceptions=True)
        assert [str(each) for each in found] == ["no broker"] * 3
        source.error = None
        assert await page.get() == 2

    asyncio.run(run())


def test_the_end() -> None:
    async def run() -> None:
        source = Source()
        page = SharedPage(source.make)
        scraper = asyncio.ensure_future(page.get())
        await turn()
        page.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraper
        assert scraper.cancelled()

    asyncio.run(run())
