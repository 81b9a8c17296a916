"""The list of all jobs, as a person uses it."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.ui.browser.made_jobs import MadeJobs, made_job
from tests.ui.browser.visits import Serve, Visits, violations
from tests.ui.run_files import write_run

from rollfleet_api.diagnosis import Diagnosis
from rollfleet_ui.saved_runs import SavedRuns

pytestmark = pytest.mark.asyncio(loop_scope="session")


def fleet() -> MadeJobs:
    return MadeJobs(
        made_job("calm"),
        made_job("done", phase="Complete"),
        made_job("later", namespace="robots", phase="Pending", points=2),
        made_job("broken", namespace="robots", reason="WorkerCrashed"),
    )


async def names(page: Page) -> list[str]:
    return await page.locator(".body .cell.name b").all_inner_texts()


async def test_trouble_comes_first_with_its_reason_in_words(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(fleet()))
    first = page.get_by_role("row").nth(1)
    await expect(first).to_contain_text("broken")
    await expect(first).to_contain_text("WorkerCrashed")
    await expect(first).to_contain_text("3/4")
    assert await names(page) == ["broken", "later", "calm", "done"]


async def test_filters_by_phase_namespace_and_text_are_in_the_address(serve: Serve, visits: Visits) -> None:
    url = await serve(fleet())
    page = await visits.open(url)
    await page.get_by_role("button", name="Trouble 1").click()
    await expect(page.get_by_role("row")).to_have_count(2)
    await page.get_by_role("button", name="All 4").click()
    await page.get_by_label("Namespace").select_option("robots")
    await page.get_by_label("Filter").fill("lat")
    await expect(page.get_by_role("row")).to_have_count(2)
    assert await names(page) == ["later"]
    again = await visits.open(url, at=page.url.partition("#")[2])
    await expect(again.get_by_role("row")).to_have_count(2)
    await again.get_by_label("Filter").fill("nothing like it")
    await expect(again.get_by_text("No job matches the filter.")).to_be_visible()


async def test_a_column_sorts_down_then_up_then_not(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(fleet()))
    header = page.get_by_role("columnheader", name="Job")
    for direction, first in (("descending", "later"), ("ascending", "calm"), ("none", "broken")):
        await header.get_by_role("button").click()
        await expect(header).to_have_attribute("aria-sort", direction)
        assert (await names(page))[0] == first


async def test_a_change_is_on_screen_without_a_reload(serve: Serve, visits: Visits) -> None:
    jobs = fleet()
    page = await visits.open(await serve(jobs))
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    failed = Diagnosis(state="Failed", reason="WorkerFailed", is_problem=True)
    jobs.change("default/calm", frames_per_second=98_765.0, diagnosis=failed)
    await expect(page.get_by_role("row", name="calm")).to_contain_text("98,765")
    await expect(page.get_by_role("button", name="Trouble 2")).to_be_visible()
    jobs.remove("robots/later")
    await expect(page.get_by_role("row", name="later")).to_have_count(0)


async def test_the_only_job_has_its_curve_in_the_list(serve: Serve, visits: Visits) -> None:
    jobs = MadeJobs(made_job("calm"), made_job("other"))
    page = await visits.open(await serve(jobs))
    await expect(page.get_by_role("row", name="calm")).to_be_visible()
    curve = page.get_by_role("slider", name="Mean return")
    await expect(curve).to_have_count(0)
    jobs.remove("default/other")
    await expect(curve).to_have_attribute("aria-valuenow", "299")
    assert await violations(page) == []


async def test_a_name_of_markup_is_text(serve: Serve, visits: Visits, tmp_path: Path) -> None:
    markup = "<img src=x onerror=alert(1)>"
    write_run(tmp_path, markup, namespace='"><script>alert(2)<')
    page = await visits.open(await serve(SavedRuns(tmp_path)))
    await page.get_by_role("link", name=markup).click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(markup)
    await page.get_by_role("link", name="Workers", exact=True).click()
    await expect(page.get_by_role("row", name="Learner, log")).to_be_visible()
    assert markup in await page.title()
    assert await page.locator("img").count() == 1, "the page's own"


async def test_a_thousand_saved_runs_scroll_with_few_rows(serve: Serve, visits: Visits, tmp_path: Path) -> None:
    for index in range(1000):
        write_run(tmp_path, f"job-{index:03}", namespace=f"team-{index % 7}")
    page = await visits.open(await serve(SavedRuns(tmp_path)))
    await expect(page.get_by_role("button", name="All 1000")).to_be_visible()
    await page.get_by_role("columnheader", name="Job").get_by_role("button").click()
    await page.get_by_role("columnheader", name="Job").get_by_role("button").click()
    await page.mouse.move(600, 500)
    await page.mouse.wheel(0, 16_000)
    await expect(page.locator("[aria-rowindex='482']")).to_be_in_viewport()
    assert await page.locator(".body .row").count() < 80
    await page.keyboard.press("End")
    last = page.get_by_role("row", name="job-993")
    await expect(last).to_be_in_viewport()
    assert await last.get_attribute("aria-rowindex") == "1001"
    await page.get_by_label("Filter").fill("job-500")
    await expect(page.get_by_role("row", name="job-500")).to_be_in_viewport()


async def test_arrow_keys_move_through_rows_and_enter_opens_a_job(serve: Serve, visits: Visits) -> None:
    jobs = MadeJobs(*(made_job(f"job-{index:03}", points=8) for index in range(200)))
    page = await visits.open(await serve(jobs))
    rows = page.locator(".body .row")
    await rows.first.get_by_role("link").focus()
    for _ in range(30):
        await page.keyboard.press("ArrowDown")
    await expect(page.locator("[data-index='30'] a")).to_be_focused()
    await expect(page.locator("[data-index='30']")).to_be_in_viewport()
    await page.keyboard.press("Home")
    await expect(page.locator("[data-index='0'] a")).to_be_focused()
    await page.keyboard.press("End")
    await expect(page.locator("[data-index='199'] a")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("job-")
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    await page.go_back()
    await expect(page.locator("[data-index='199']")).to_be_in_viewport()
