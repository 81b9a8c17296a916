"""The views of one job, as a person uses them."""

import re

import pytest
from playwright.async_api import expect
from tests.ui.browser.made_jobs import MadeJobs, made_job
from tests.ui.browser.visits import Serve, Visits

from rollfleet_api.status import CollectorJobStatus, EvaluationStatus

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_diagnosis_and_what_to_do_stand_on_top(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(MadeJobs(made_job("broken", reason="WorkerCrashed"))))
    await page.get_by_role("link", name="broken").click()
    diagnosis = page.get_by_role("region", name="Diagnosis")
    await expect(diagnosis).to_contain_text("WorkerCrashed")
    await expect(diagnosis).to_contain_text("What to do See rollfleet logs default/broken --worker 3")
    assert await page.title() == "default/broken · Rollfleet"


async def test_curves_are_read_by_pointer_and_keyboard_over_time_and_over_frames(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(MadeJobs(made_job("calm"))), at="/jobs/default/calm")
    await expect(page.get_by_text("The learner is the bottleneck: workers waited 63 %")).to_be_visible()
    info = page.get_by_role("slider", name=re.compile("success"))
    await expect(info).to_have_attribute("aria-valuetext", re.compile("success 1, min 0, max 1"))
    curve = page.get_by_role("slider", name=re.compile("Mean return"))
    await expect(curve).to_have_attribute("aria-valuenow", "299")
    await curve.hover()
    await expect(curve).not_to_have_attribute("aria-valuenow", "299")
    await curve.focus()
    await page.keyboard.press("Home")
    await expect(curve).to_have_attribute("aria-valuenow", "0")
    await expect(curve).to_have_attribute("aria-valuetext", re.compile("created with 4 workers"))
    await page.keyboard.press("End")
    await page.keyboard.press("ArrowLeft")
    await expect(curve).to_have_attribute("aria-valuenow", "298")
    await page.get_by_role("button", name="Over frames").click()
    await expect(curve).to_have_attribute("aria-valuetext", re.compile(r"frames: Mean return \d"))
    await page.get_by_role("button", name="Over versions").click()
    await expect(curve).to_have_attribute("aria-valuetext", re.compile(r"version 99: Mean return \d.*, max 500"))


async def test_the_newest_evaluation_and_failed_episodes_stand_among_the_numbers(serve: Serve, visits: Visits) -> None:
    job = made_job("calm")
    status = CollectorJobStatus(
        evaluation=EvaluationStatus(version=40, mean_return=412.5, episodes=10),
        failed_episodes={"TimeoutError": 3, "app.Crash": 4},
    )
    job.page = job.page.model_copy(update={"status": status})
    page = await visits.open(await serve(MadeJobs(job)), at="/jobs/default/calm")
    await expect(page.locator(".numbers div").filter(has_text="Evaluation")).to_have_text(
        re.compile(r"412\.5\s*at version 40")
    )
    await expect(page.locator(".numbers div").filter(has_text="Failed episodes")).to_have_text(
        re.compile(r"7\s*TimeoutError, app\.Crash")
    )


async def test_waits_are_read_for_the_learner_and_for_the_workers(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(MadeJobs(made_job("calm"))), at="/jobs/default/calm")
    learner = page.get_by_role("slider", name=re.compile("Learner"))
    workers = page.get_by_role("slider", name=re.compile("Workers:"))
    await expect(learner).to_have_attribute("aria-valuetext", re.compile(r"waits for batches \d+ %"))
    await expect(workers).to_have_attribute(
        "aria-valuetext", re.compile(r"wait for the learner 6\d %, wait for weights \d+ %")
    )


async def test_a_curve_grows_while_one_watches(serve: Serve, visits: Visits) -> None:
    jobs = MadeJobs(made_job("calm"))
    page = await visits.open(await serve(jobs), at="/jobs/default/calm")
    curve = page.get_by_role("slider", name=re.compile("Mean return"))
    await expect(curve).to_have_attribute("aria-valuemax", "299")
    series = jobs.made["default/calm"].history.series
    series.add(series.points().time[-1] + 1, {"meanReturn": 500.0, "frames": 9e6})
    jobs.change("default/calm", frames=9_000_000)
    await expect(curve).to_have_attribute("aria-valuemax", "300")
    await expect(curve).to_have_attribute("aria-valuetext", re.compile("Mean return 500"))


async def test_the_timeline_shows_the_difference_of_an_edit_and_hides_versions(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(MadeJobs(made_job("calm"))), at="/jobs/default/calm")
    await page.get_by_role("link", name="Timeline", exact=True).click()
    edited = page.get_by_role("listitem").filter(has_text="edited: workers")
    await edited.get_by_text("Details").click()
    await expect(edited.locator(".removed").last).to_have_text("-workers: 2\n")
    await expect(edited.locator(".added").last).to_have_text("+workers: 4\n")
    await expect(page.get_by_role("listitem").filter(has_text="NATS away")).to_be_visible()
    versions = page.get_by_role("listitem").filter(has_text="versions 1 to 75")
    await expect(versions).to_have_count(0)
    await page.get_by_label("Show versions").check()
    await expect(versions).to_be_visible()


async def test_the_spec_shows_defaults_as_such_or_not_at_all(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(MadeJobs(made_job("calm"))), at="/jobs/default/calm/spec")
    spec = page.get_by_role("region", name="YAML")
    await expect(spec).to_contain_text("  numEnvs: 8")
    await expect(spec.locator(".default.named", has_text="interval: 1")).to_be_visible()
    await expect(spec.locator(".default", has_text="numEnvs")).to_have_count(0)
    await page.get_by_label("Show defaults").uncheck()
    assert await spec.inner_text() == (
        "env:\n  id: CartPole-v1\n  numEnvs: 8\npolicy:\n  mlp:\n    hidden:\n    - 64\n    - 32\n"
        "collect:\n  framesPerBatch: 2048\n  totalFrames: 5000000"
    )
    await expect(page.get_by_role("row", name="Pod calm-worker-0 Running")).to_be_visible()


async def test_the_curves_of_chosen_jobs_lie_over_each_other(serve: Serve, visits: Visits) -> None:
    page = await visits.open(await serve(MadeJobs(*(made_job(f"seed-{seed}", points=50 + seed) for seed in range(3)))))
    for seed in (0, 2):
        await page.get_by_label(f"Compare default/seed-{seed}").check()
    await page.get_by_role("link", name="Compare 2").click()
    curve = page.get_by_role("slider")
    await expect(curve).to_have_attribute("aria-valuetext", re.compile(r"default/seed-0 \d+.*default/seed-2 \d+"))
    await page.get_by_label("Number to compare").select_option("Lag")
    await page.get_by_role("button", name="Over frames").click()
    await expect(page.get_by_role("slider", name=re.compile("Lag"))).to_be_visible()
    await expect(curve).to_have_attribute("aria-valuetext", re.compile("default/seed-0 [0-2]"))
    await page.get_by_role("link", name="Remove default/seed-0").click()
    await expect(curve).to_have_attribute("aria-valuetext", re.compile("^((?!seed-0).)*$"))


async def test_a_job_that_is_deleted_while_it_is_shown_says_so_with_its_curves_and_the_next_one_does_not(
    serve: Serve, visits: Visits
) -> None:
    jobs = MadeJobs(made_job("calm"), made_job("other"))
    page = await visits.open(await serve(jobs), at="/jobs/default/calm")
    curve = page.get_by_role("slider", name=re.compile("Mean return"))
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    jobs.remove("default/calm")
    await expect(page.get_by_text("This job was deleted.")).to_be_visible()
    await expect(curve).to_have_attribute("aria-valuemax", "299")
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_role("link", name="other").click()
    await expect(curve).to_be_visible()
    await expect(page.get_by_text("This job was deleted.")).to_have_count(0)
