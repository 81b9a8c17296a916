"""A browser for the page's tests: Playwright drives a chromium of this machine."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect
from tests.ui.browser.visits import Serve, Visits

from rollfleet_ui.server import page, served
from rollfleet_ui.source import Source
from rollfleet_ui.token_guard import TokenGuard

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 20_000  # timeout of what takes a second on a calm machine
ABSENT = "no chromium on the PATH: apt-get install chromium"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A browser; one for all tests of a process."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(ABSENT)
        pytest.skip(ABSENT)
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        # A busy machine can lose an animated scroll.
        options = ["--no-sandbox", "--disable-smooth-scrolling"]
        found = await playwright.chromium.launch(executable_path=program, args=options)
        yield found
        await found.close()


@pytest_asyncio.fixture(loop_scope="session")
async def visits(browser: Browser) -> AsyncIterator[Visits]:
    """Pages for one test. It fails if one of them had an error, a dialog, or a request to elsewhere."""
    visits = Visits(browser)
    yield visits
    await visits.close()
    assert visits.complaints == []


@pytest_asyncio.fixture(loop_scope="session")
async def serve() -> AsyncIterator[Serve]:
    """Serve a source until the test ends. Returns the URL with its token."""
    async with AsyncExitStack() as stack:

        async def start(source: Source) -> str:
            guard = TokenGuard()
            return guard.url(await stack.enter_async_context(served(page(source, guard), port=0)))

        yield start
