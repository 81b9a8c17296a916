"""The page in a browser: its size, its speed, and what it costs a job and the operator.

`python -P benchmarks/page.py [--quick]`

It needs chromium on the PATH. The jobs of the lists are made; the server, the browser and the run that pays for open
pages are real. Values are medians over rounds, which alternate. Browsers and run share the CPUs of one machine; the CPU
time of the run's own process, which serves the pages, shows what the pages alone cost. The operator's part is its
`Fleet`, of jobs that change each second, in a process of its own.
"""

import argparse
import asyncio
import gzip
import itertools
import multiprocessing
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

import kopf  # noqa: E402
import psutil  # noqa: E402
from playwright.async_api import Browser, Page, async_playwright  # noqa: E402
from tests.control.pure.scene import Scene  # noqa: E402
from tests.ui.browser.made_jobs import MadeJobs, made_job  # noqa: E402

from rollfleet_api.messages import LearnerStatus  # noqa: E402
from rollfleet_api.validation import parse_job  # noqa: E402
from rollfleet_operator.cache import Cache  # noqa: E402
from rollfleet_operator.nats_port import JobKey  # noqa: E402
from rollfleet_operator.status import status  # noqa: E402
from rollfleet_operator.ui.fleet import Fleet  # noqa: E402
from rollfleet_operator.ui.logs import PodLogs  # noqa: E402
from rollfleet_ui.server import page, served  # noqa: E402
from rollfleet_ui.static_files import FOLDER  # noqa: E402
from rollfleet_ui.token_guard import TokenGuard  # noqa: E402

ROWS = 1000
PAGES = 10
OPERATED = 200  # jobs of an operator
JOB = """
apiVersion: rollfleet.dev/v1alpha1
kind: CollectorJob
metadata: {name: cost}
spec:
  workers: 1
  mode: Async
  env: {id: CartPole-v1, numEnvs: 32}
  policy: {random: {}}
  collect: {framesPerBatch: 4096, totalFrames: 0}
"""
OPERATED_JOB = {
    "apiVersion": "rollfleet.dev/v1alpha1",
    "kind": "CollectorJob",
    "spec": {"workers": 2, "env": {"id": "CartPole-v1"}, "policy": {"mlp": {}}, "collect": {"framesPerBatch": 64}},
}
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SCROLL = """() => new Promise(resolve => {
  let frame = 0, input = 0, last = performance.now(), until = last + 2000;
  new PerformanceObserver(found => found.getEntries().forEach(each => { input = Math.max(input, each.duration); }))
    .observe({type: "event", durationThreshold: 16});
  const tick = now => {
    frame = Math.max(frame, now - last); last = now; scrollBy(0, 200);
    now < until ? requestAnimationFrame(tick) : resolve([frame, input]);
  };
  requestAnimationFrame(tick);
})"""


def kibibytes() -> float:
    """Return the size of all files that a browser loads, each compressed."""
    files = [path for path in FOLDER.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg")]
    return sum(len(gzip.compress(path.read_bytes())) for path in files) / 1024


@asynccontextmanager
async def visit(browser: Browser, url: str) -> AsyncIterator[Page]:
    """Open a page with nothing in its cache."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    yield await context.new_page()
    await context.close()


async def seconds_until(visitor: Page, url: str, selector: str) -> float:
    """Return the seconds from the request until an element is on screen."""
    began_s = time.perf_counter()
    await visitor.goto(url, wait_until="commit")
    await visitor.wait_for_selector(selector)
    return time.perf_counter() - began_s


async def paint(browser: Browser, rounds: int) -> None:
    """Measure an ordinary list: first paint, rows on screen, and a change on screen."""
    jobs, guard = MadeJobs(*(made_job(f"job-{index}", points=60) for index in range(10))), TokenGuard()
    painted_ms: list[float] = []
    rows_s: list[float] = []
    changes_s: list[float] = []
    async with served(page(jobs, guard), port=0) as port:
        for _ in range(rounds):
            async with visit(browser, guard.url(port)) as visitor:
                rows_s.append(await seconds_until(visitor, guard.url(port), ".body .row"))
                painted_ms.append(await visitor.evaluate(PAINTED))
                await visitor.wait_for_selector(".link.live")
                value = 50_000 + len(changes_s)
                began_s = time.perf_counter()
                jobs.change("default/job-3", frames_per_second=float(value))
                await visitor.wait_for_selector(f"text={value:,}")
                changes_s.append(time.perf_counter() - began_s)
    print(f"first contentful paint {statistics.median(painted_ms):.0f} ms; ten rows on screen", end=" ")
    print(f"{1000 * statistics.median(rows_s):.0f} ms; a change on screen {statistics.median(changes_s):.2f} s")


async def rows(browser: Browser, rounds: int) -> None:
    """Measure a list of many jobs and a job of many workers, while many of them change."""
    jobs = MadeJobs(*(made_job(f"job-{index}", points=30) for index in range(ROWS)), made_job("many", workers=ROWS))
    guard = TokenGuard()
    async with served(page(jobs, guard), port=0) as port:
        changing = asyncio.create_task(_change(jobs))
        for name, place in (("jobs", "/"), ("workers of a job", "/jobs/default/many/workers")):
            shown_s, scrolled_ms = [], []
            for _ in range(rounds):
                async with visit(browser, guard.url(port)) as visitor:
                    await visitor.goto(guard.url(port))
                    await visitor.goto("about:blank")
                    at = f"http://127.0.0.1:{port}/#{place}"
                    shown_s.append(await seconds_until(visitor, at, ".body .row"))
                    scrolled_ms.append(await _scroll(visitor))
            frame_ms, input_ms = (statistics.median(each) for each in zip(*scrolled_ms, strict=True))
            print(
                f"{ROWS:,} {name}: {1000 * statistics.median(shown_s):.0f} ms; while it scrolls: the longest", end=" "
            )
            print(f"frame {frame_ms:.0f} ms, from a click that sorts to the screen {input_ms or '< 16'} ms")
        changing.cancel()


async def _scroll(visitor: Page) -> tuple[float, float]:
    """Scroll for two seconds and sort meanwhile. Return the longest frame and the slowest answer, in milliseconds."""
    scrolling = asyncio.create_task(visitor.evaluate(SCROLL))
    for _ in range(5):
        await asyncio.sleep(0.2)
        title = await visitor.get_by_role("button", name="Frames/s").bounding_box()
        assert title
        await visitor.mouse.click(title["x"] + 5, title["y"] + 5)
    frame_ms, input_ms = await scrolling
    return frame_ms, input_ms


async def _change(jobs: MadeJobs) -> None:
    while True:
        await asyncio.sleep(1)
        for row in jobs.jobs():
            jobs.change(row.key, frames=row.frames + 1)


async def cost(browser: Browser, seconds: float, rounds: int) -> None:
    """Measure the frames/s of a real run: without a page, with one open, with ten of which one reads nothing."""
    names = ("no page", "one page", f"{PAGES} pages and a client that reads nothing")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with running() as (url, run):
        async with visit(browser, url) as meter:
            await meter.goto(url)
            await meter.wait_for_selector(".cell.frames >> text=/[1-9]/", timeout=120_000)
            await meter.goto("about:blank")
            for _ in range(rounds):
                for name, count in zip(names, (0, 1, PAGES), strict=True):
                    found[name].append(await _rate(browser, meter, url, run, count, seconds))
    alone = statistics.median(rate for rate, _ in found[names[0]])
    for name, values in found.items():
        rate, cpu = (statistics.median(each) for each in zip(*values, strict=True))
        rounds_of = ", ".join(f"{each:,.0f}" for each, _ in values)
        print(
            f"{name}: {rate:,.0f} frames/s, {100 * rate / alone:.1f} % (rounds: {rounds_of}); "
            f"{100 * cpu:.1f} % of a CPU in the run's own process"
        )


async def _rate(
    browser: Browser, meter: Page, url: str, run: psutil.Process, count: int, seconds: float
) -> tuple[float, float]:
    """Return a run's frames per second, and its own process's CPU, while `count` browsers show it."""
    contexts = [await browser.new_context() for _ in range(count)]
    for context in contexts:
        visitor = await context.new_page()
        await visitor.goto(url)
        await visitor.goto(f"{url.partition('?')[0]}#/jobs/default/cost")
    slow = _stalled(url, await meter.context.cookies()) if count > 1 else None
    began, began_cpu_s, began_s = await _frames(meter, url), sum(run.cpu_times()[:2]), time.perf_counter()
    await asyncio.sleep(seconds)
    ended, cpu_s, now_s = await _frames(meter, url), sum(run.cpu_times()[:2]), time.perf_counter()
    for context in contexts:
        await context.close()
    if slow:
        slow.close()
    return (ended - began) / (now_s - began_s), (cpu_s - began_cpu_s) / (now_s - began_s)


async def _frames(meter: Page, url: str) -> int:
    answer = await meter.context.request.get(f"{url.partition('?')[0]}api/v1/jobs")
    rows: list[dict[str, Any]] = await answer.json()
    return int(rows[0]["frames"])


def _stalled(url: str, cookies: Any) -> socket.socket:
    """Return a connection that asks for changes and never reads them."""
    host, port = re.search(r"//([^:]+):(\d+)", url).groups()  # type: ignore[union-attr]
    found = socket.create_connection((host, int(port)))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    cookie = "; ".join(f"{each['name']}={each['value']}" for each in cookies)
    found.sendall(f"GET /api/v1/changes HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n\r\n".encode())
    return found


@contextmanager
def running() -> Iterator[tuple[str, psutil.Process]]:
    """Run a job with its page until the block ends. Yields the page's URL, and the process that serves it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(JOB)
        command = [sys.executable, "-P", "-m", "rollfleet", "run", "job.yaml", "--ui"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            try:
                assert run.stdout
                url = next(found[0] for line in run.stdout if (found := re.search(r"http://\S+token=\S+", line)))
                yield url, psutil.Process(run.pid)
            finally:
                run.terminate()
                run.communicate()


async def memory(browser: Browser, seconds: float) -> None:
    """Measure how an operator's memory grows: without a page, and with ten open."""
    ours, theirs = multiprocessing.Pipe()
    operator = multiprocessing.get_context("spawn").Process(target=operate, args=(theirs,), daemon=True)
    operator.start()
    url = await asyncio.to_thread(ours.recv)
    mebibytes = []
    async with AsyncExitStack() as open_pages:
        for pages in (0, 0, PAGES):
            for index in range(pages):
                visitor = await open_pages.enter_async_context(visit(browser, url))
                await visitor.goto(url)
                await visitor.goto(f"{url.partition('?')[0]}#/{f'jobs/lab/job-{index}' * (index % 2)}")
            await asyncio.sleep(seconds)
            mebibytes.append(psutil.Process(operator.pid).memory_info().rss / 2**20)
    operator.kill()
    alone, with_pages = (late - early for early, late in itertools.pairwise(mebibytes))
    print(
        f"an operator of {OPERATED} jobs, {mebibytes[1]:.0f} MiB, grew in {seconds:.0f} s by {alone:.1f} MiB", end="; "
    )
    print(f"with {PAGES} pages open, in as many seconds, by {with_pages:.1f} MiB")


def operate(url: Connection) -> None:
    """Serve an operator's page of jobs that change each second, until killed. Sends its URL."""
    asyncio.run(_operate(url))


async def _operate(url: Connection) -> None:
    cache, guard = Cache(), TokenGuard()
    fleet = Fleet(cache, PodLogs(cache, lambda: kopf.ConnectionInfo(server="https://nowhere")))
    scenes = [Scene(parse_job(OPERATED_JOB | {"metadata": _metadata(index)})) for index in range(OPERATED)]
    scenes = [scene.with_children().running(0, 1) for scene in scenes]
    for scene in scenes:
        cache.put(scene.job.dump())
    async with served(page(fleet, guard), port=0) as port:
        url.send(guard.url(port))
        for second in itertools.count(1):
            for scene in scenes:
                now = replace(scene, now_s=time.time())
                beats = [now.beat(index, version=second, frames=64 * second) for index in (0, 1)]
                snapshot = now.with_heartbeats(*beats, learner=_learner(second, now.now_s)).snapshot
                fleet.update(JobKey("lab", scene.job.metadata.name), snapshot, status(snapshot))
                await asyncio.sleep(1 / OPERATED)


def _metadata(index: int) -> dict[str, Any]:
    known = {"generation": 1, "resourceVersion": "1", "creationTimestamp": "2026-11-22T00:00:00Z"}
    return {"name": f"job-{index}", "namespace": "lab", "uid": str(index), **known}


def _learner(second: int, now_s: float) -> LearnerStatus:
    return LearnerStatus(
        session=1,
        version=second,
        applied_version=second,
        frames=128 * second,
        batches=second,
        dropped=0,
        mean_return=second % 500,
        lag=0,
        waited_s=0.2 * second,
        time_s=now_s,
    )


async def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    quick = parser.parse_args().quick
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("skipped: no chromium on the PATH")
        return
    print(f"all files, compressed: {kibibytes():.1f} KiB")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        await paint(browser, 3 if quick else 11)
        await rows(browser, 2 if quick else 7)
        await memory(browser, 10 if quick else 60)
        await cost(browser, 5 if quick else 20, 2 if quick else 5)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
