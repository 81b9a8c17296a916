"""The workers of a job and their logs, as a person uses them."""

import re

import pytest
from playwright.async_api import expect
from tests.ui.browser.made_jobs import MadeJobs, made_job
from tests.ui.browser.visits import Serve, Visits

pytestmark = pytest.mark.asyncio(loop_scope="session")

MARKUP = '<img src=x onerror="alert(1)">'


def broken() -> MadeJobs:
    job = made_job("broken", reason="WorkerCrashed")
    job.logs["worker 3", False] = "".join(f"line {number} {MARKUP}\n" for number in range(10_000))
    job.logs["worker 3", True] = "RuntimeError: the incarnation before\n"
    return MadeJobs(job)


async def test_a_failed_worker_comes_first_and_opens_its_logs(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(broken()), at="/jobs/default/broken/workers")
    first = page.get_by_role("row").nth(1)
    await expect(first).to_contain_text("Failed")
    await expect(first).to_contain_text("the environment sent NaN")
    await first.get_by_role("link").click()
    await expect(page.get_by_role("heading", name="Worker 3")).to_be_focused()
    lines = page.get_by_role("region", name="Lines of the log")
    await expect(lines).to_contain_text(f"line 9999 {MARKUP}")
    await expect(lines).not_to_contain_text("line 9799 ")
    await page.get_by_label("Number of lines").select_option("Last 10,000 lines")
    await expect(lines).to_contain_text(f"line 0 {MARKUP}")
    await page.get_by_role("button", name="The one before").click()
    await expect(lines).to_have_text("RuntimeError: the incarnation before")
    await page.get_by_role("link", name="Close").click()
    await expect(lines).to_have_count(0)


async def test_an_open_log_grows(serve: Serve, visits: Visits) -> None:
    jobs = broken()
    page = await visits.open(await serve(jobs), at="/jobs/default/broken/workers/learner")
    lines = page.get_by_role("region", name="Lines of the log")
    await expect(lines).to_have_text("learner trains")
    jobs.made["default/broken"].logs["learner", False] += "and more\n"
    await expect(lines).to_have_text(re.compile("and more"))


async def test_a_log_that_is_not_there_is_said(serve: Serve, visits: Visits) -> None:
    jobs = broken()
    del jobs.made["default/broken"].logs["worker 1", False]
    page = await visits.open(await serve(jobs), at="/jobs/default/broken/workers/1")
    await expect(page.get_by_text("there is no such log")).to_be_visible()


async def test_a_thousand_workers_scroll_sort_and_filter(serve: Serve, visits: Visits) -> None:
    page = await visits.open(
        await serve(MadeJobs(made_job("many", workers=1000, points=20))), at="/jobs/default/many/workers"
    )
    await expect(page.get_by_role("row", name="Learner, log")).to_be_in_viewport()
    await page.mouse.move(600, 600)
    await page.mouse.wheel(0, 20_000)
    await expect(page.locator("[data-index='580']")).to_be_in_viewport()
    assert await page.locator(".body .row").count() < 80
    await page.get_by_role("columnheader", name="Frames/s").get_by_role("button").click()
    await page.get_by_label("Filter").fill("node-3 17")
    await expect(page.get_by_role("row")).to_have_count(2)
    await expect(page.get_by_role("link", name="Worker 17, log")).to_be_visible()
