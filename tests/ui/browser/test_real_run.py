"""A real run in a real browser: watched, disturbed, ended, and opened again from its folder.

The pictures of the docs are made here: `ROLLFLEET_PICTURES=docs/images pytest tests/ui/browser/test_real_run.py`.
"""

import asyncio
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect
from tests.sdk.cli.program import Program, Workplace
from tests.ui.browser.visits import Visits

pytestmark = pytest.mark.asyncio(loop_scope="session")

PICTURES = os.environ.get("ROLLFLEET_PICTURES")
POINTS = 45 if PICTURES else 5
"""How long the run is watched, in points of its curve; for a picture until it has something to show."""


async def url_of(program: Program) -> str:
    found = await asyncio.to_thread(program.wait_for, r"http://127\.0\.0\.1:\d+/\?token=\S+")
    return found[0]


def curve_of(page: Page) -> Locator:
    return page.get_by_role("slider", name=re.compile("Mean return"))


async def wait_for_points(page: Page, count: int) -> None:
    await page.wait_for_function(
        "count => Number(document.querySelector('.tall .plot')?.ariaValueMax) >= count", arg=count, timeout=110_000
    )


async def shoot(page: Page, name: str, folder: Path, *, height: int) -> None:
    """Take a picture of a page, for the docs."""
    await page.set_viewport_size({"width": 1280, "height": height})
    await page.wait_for_timeout(300)  # the curves are drawn again
    await page.screenshot(path=folder / f"page-{name}.png")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_run_is_watched_and_disturbed_and_opened_again_from_its_folder(
    workplace: Workplace, visits: Visits, repository: Path
) -> None:
    pictures = repository / PICTURES if PICTURES else workplace.folder
    shutil.copytree(repository / "examples/cartpole", workplace.folder, dirs_exist_ok=True)
    job = (workplace.folder / "job.yaml").read_text()
    (workplace.folder / "job.yaml").write_text(job.replace("totalFrames: 250000", "totalFrames: 2000000"))
    program = workplace.run("--ui", "--learner", "learner.py")
    page = await visits.open(await url_of(program))

    await expect(page.get_by_role("row", name="cartpole")).to_contain_text("2/2", timeout=60_000)
    await page.get_by_role("link", name="cartpole").click()
    await wait_for_points(page, POINTS * 2 // 3)
    await expect(curve_of(page)).to_have_attribute("aria-valuetext", re.compile(r"Mean return \d"), timeout=60_000)
    await asyncio.to_thread(program.kill_worker, 1)
    latest = page.get_by_role("region", name="Latest events")
    await expect(latest).to_contain_text("Worker ended")
    await expect(latest).to_contain_text("Worker back", timeout=60_000)
    await wait_for_points(page, POINTS)
    await shoot(page, "job", pictures, height=1160)

    await page.get_by_role("link", name="Workers", exact=True).click()
    await page.get_by_role("link", name="Worker 1, log").click()
    await page.get_by_role("button", name="The one before").click()
    await expect(page.get_by_role("region", name="Lines of the log")).to_have_text("No lines.")
    await page.get_by_role("link", name="Learner, log").click()
    await expect(page.get_by_role("region", name="Lines of the log")).to_contain_text("frames")
    await shoot(page, "workers", pictures, height=620)

    await asyncio.to_thread(program.end_by, signal.SIGINT)
    await expect(page.get_by_text("The server does not answer.")).to_be_visible()
    await expect(page.get_by_role("region", name="Lines of the log")).to_contain_text("frames")

    workplace.write_job(collect={"framesPerBatch": 64, "totalFrames": 1280})
    assert await asyncio.to_thread(workplace.run("--ui").wait) == 0
    page = await visits.open(await url_of(workplace.start("ui", "runs")))
    await expect(page.get_by_role("row", name="test@")).to_contain_text("Complete")
    for box in await page.get_by_role("checkbox").all():
        await box.check()
    await shoot(page, "jobs", pictures, height=400)
    await page.get_by_role("link", name="Compare 2").click()
    await expect(page.get_by_role("slider")).to_have_attribute(
        "aria-valuetext",
        re.compile(r"default/cartpole@\S+ \d.*default/test@\S+ \d|default/test@\S+ \d.*cartpole@\S+ \d"),
    )
    await page.get_by_role("link", name="cartpole@").first.click()
    await wait_for_points(page, POINTS)
    await page.get_by_role("link", name="Spec", exact=True).click()
    await expect(page.get_by_role("region", name="YAML")).to_contain_text("id: CartPole-v1")
