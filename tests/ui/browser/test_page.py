"""The page as a whole: access, hostile text, faults of its server, accessibility, and its files."""

import asyncio
import gzip
import hashlib
import re
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.ui.browser.made_jobs import MadeJob, MadeJobs, made_job
from tests.ui.browser.visits import Serve, Visits, violations

from rollfleet_api.diagnosis import Diagnosis
from rollfleet_api.status import CollectorJobStatus
from rollfleet_ui.model import Happened
from rollfleet_ui.server import FOLDER, served
from rollfleet_ui.server import page as page_of
from rollfleet_ui.token_guard import TokenGuard

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_BYTES = 80 * 1024
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
MARKUP = "<img src=x onerror=alert(1)>"
VIEWS = [
    "/",
    "/jobs/default/broken",
    "/jobs/default/broken/workers",
    "/jobs/default/broken/workers/3",
    "/jobs/default/broken/timeline",
    "/jobs/default/broken/spec",
    "/compare?job=default/broken&job=default/calm",
    "/compare",
    "/jobs/default/absent",
]


def fleet() -> MadeJobs:
    return MadeJobs(made_job("broken", reason="WorkerCrashed"), made_job("calm"), made_job("done", phase="Complete"))


def hostile() -> MadeJob:
    """A job whose every text is markup."""
    job = made_job("x" * 63, namespace="y" * 63, reason="WorkerCrashed")
    found = Diagnosis(state=MARKUP, reason=MARKUP, message=MARKUP, advice=f"`{MARKUP}`", is_problem=True)
    row = job.page.row.model_copy(update={"diagnosis": found})
    job.page = job.page.model_copy(
        update={"row": row, "status": CollectorJobStatus(bottleneck=MARKUP), "spec": f"env:\n  id: {MARKUP}\n"}
    )
    job.workers = [each.model_copy(update={"last_error": MARKUP, "node": MARKUP}) for each in job.workers]
    job.logs["worker 3", False] = MARKUP
    job.history.note(2e9, Happened.EDITED, MARKUP, f"+{MARKUP}")
    return job


@pytest.mark.parametrize("view", VIEWS)
async def test_no_view_violates_wcag_nor_scrolls_sideways(serve: Serve, visits: Visits, view: str) -> None:
    url = await serve(fleet())
    for scheme, width in (("light", 1280), ("dark", 320)):
        page = await visits.open(url, at=view, color_scheme=scheme, viewport={"width": width, "height": 700})
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await expect(page.get_by_text("Loading…")).to_have_count(0)
        assert await violations(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == width


async def test_markup_in_any_text_is_text(serve: Serve, visits: Visits) -> None:
    job = hostile()
    url = await serve(MadeJobs(job))
    place = f"/jobs/{job.page.row.key}"
    page = await visits.open(url)
    for view in ("/", place, f"{place}/workers/3", f"{place}/timeline", f"{place}/spec"):
        await page.goto(f"{url.partition('?')[0]}#{view}")
        await expect(page.get_by_text(MARKUP).first).to_be_visible()
        assert await page.locator("img").count() == 1, "the page's own"
        assert await page.evaluate("document.documentElement.scrollWidth") == 1280


async def test_long_names_and_errors_wrap_on_a_narrow_screen(serve: Serve, visits: Visits) -> None:
    job = hostile()
    url = await serve(MadeJobs(job))
    page = await visits.open(url, viewport={"width": 320, "height": 700})
    place = f"/jobs/{job.page.row.key}"
    for view in ("/", place, f"{place}/workers", f"{place}/workers/3", f"/compare?job={job.page.row.key}"):
        await page.goto(f"{url.partition('?')[0]}#{view}")
        await expect(page.get_by_text("xxxxx").first).to_be_visible()
        await expect(page.get_by_text("Loading…")).to_have_count(0)
        assert await page.evaluate("document.documentElement.scrollWidth") == 320, view


async def test_a_server_that_goes_away_is_said_and_the_page_goes_on_when_it_is_back(visits: Visits) -> None:
    jobs, guard = fleet(), TokenGuard()
    async with served(page_of(jobs, guard), port=0) as port:
        page = await visits.open(guard.url(port))
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await expect(page.get_by_text("The server does not answer.")).to_be_visible()
    await expect(page.get_by_role("row", name="calm")).to_be_visible()
    jobs.change("default/calm", frames_per_second=4321.0)
    async with served(page_of(jobs, guard), port=port):
        await expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=15_000)
        await expect(page.get_by_role("row", name="calm")).to_contain_text("4,321")


async def test_a_program_that_was_started_again_has_another_token_and_the_page_says_so(visits: Visits) -> None:
    async with served(page_of(fleet(), guard := TokenGuard()), port=0) as port:
        page = await visits.open(guard.url(port))
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    async with served(page_of(fleet(), TokenGuard()), port=port):
        await expect(page.get_by_text("This address has no valid token any more")).to_be_visible(timeout=15_000)


async def test_all_of_it_works_by_keyboard_alone(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(fleet()))
    await expect(page.get_by_role("row", name="broken")).to_be_visible()

    async def tab_to(name: str) -> None:
        for _ in range(60):
            await page.keyboard.press("Tab")
            label = "(e => e.ariaLabel ?? e.labels?.[0]?.innerText ?? e.innerText)(document.activeElement)"
            if re.search(name, (await page.evaluate(label) or "")):
                return
        pytest.fail(f"Tab does not reach {name}")

    await tab_to("Skip to content")
    await page.keyboard.press("Enter")
    await tab_to("Trouble")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("row")).to_have_count(2)
    await tab_to("Filter")
    await page.keyboard.type("brok")
    await tab_to("Compare default/broken")
    await page.keyboard.press("Space")
    await tab_to("broken")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Over frames")).to_be_visible()
    await tab_to("Over frames")
    await page.keyboard.press("Enter")
    await tab_to("Mean return")
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("Shift+Tab")
    await page.goto(page.url.partition("?")[0] + "/workers")
    await expect(page.get_by_label("Worker 3, log")).to_be_visible()
    await tab_to("Worker 3, log")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Worker 3")).to_be_focused()
    await tab_to("The one before")
    await page.keyboard.press("Enter")
    await tab_to("Lines of the log")
    await page.keyboard.press("Shift+Tab")
    await page.goto(page.url.partition("#")[0] + "#/jobs/default/broken/timeline")
    await tab_to("Show versions")
    await page.keyboard.press("Space")
    await tab_to("Details")
    await page.keyboard.press("Enter")
    await expect(page.locator(".difference").first).to_be_visible()


async def test_a_hidden_page_asks_for_nothing(serve: Serve, visits: Visits) -> None:
    jobs = fleet()
    page = await visits.open(await serve(jobs))
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await page.evaluate(HIDE, True)
    await asyncio.sleep(0.5)  # an answer under way
    asked = jobs.asked
    await asyncio.sleep(2.5)
    assert jobs.asked == asked
    jobs.change("default/calm", frames_per_second=1234.0)
    await page.evaluate(HIDE, False)
    await expect(page.get_by_role("row", name="calm")).to_contain_text("1,234")


async def test_all_files_of_the_page_are_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg")]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= MOST_BYTES


async def test_vendored_files_are_those_that_their_readme_names(repository: Path) -> None:
    for folder in (FOLDER / "vendor", repository / "tests/ui/browser/axe"):
        readme = (folder / "README.md").read_text()
        for path in folder.iterdir():
            assert path.name == "README.md" or hashlib.sha256(path.read_bytes()).hexdigest() in readme, path
