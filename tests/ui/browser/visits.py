"""Visits to the page by a browser."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, Request

from rollfleet_ui.source import Source

Serve = Callable[[Source], Awaitable[str]]
"""Serves a source until the test ends, and returns the URL with its token."""

WIDE = {"width": 1280, "height": 800}
AXE = Path(__file__).parent / "axe" / "axe.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@dataclass
class Visits:
    """Opens pages as new visitors, and keeps what their consoles complain about."""

    browser: Browser
    complaints: list[str] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def open(self, url: str, *, at: str = "", **options: Any) -> Page:
        """Open a page by its URL with the token, then load an address in it; `options` are the browser context's."""
        context = await self.browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
        self._stack.push_async_callback(context.close)
        visitor = await context.new_page()
        visitor.on("console", lambda message: self._hear(message.type, message.text))
        visitor.on("pageerror", lambda error: self.complaints.append(str(error)))
        visitor.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        visitor.on("request", lambda request: self._check(request, url))
        await visitor.goto(url)
        if at:
            await visitor.goto("about:blank")  # else only the fragment changes, and the page stays loaded
            await visitor.goto(f"{url.partition('?')[0]}#{at}")
        return visitor

    def _hear(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith(
            "Failed to load resource"
        ):  # an answer such as 404 is no error of the page
            self.complaints.append(text)

    def _check(self, request: Request, url: str) -> None:
        if not request.url.startswith(url.partition("?")[0]):
            self.complaints.append(f"a request to elsewhere: {request.url}")

    async def close(self) -> None:
        await self._stack.aclose()


async def violations(page: Page) -> list[str]:
    """Return the violations of WCAG 2.2 AA that axe-core finds in a page."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("rules => axe.run(document, {runOnly: rules})", RULES)
    return [
        f"{each['id']}: {node['html']}: {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]
