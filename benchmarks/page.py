"""The page in a browser: its size, its speed, and what it costs a job.

`python -P benchmarks/page.py [--quick]`

It needs chromium on the PATH. The jobs of the lists are made; the server, the browser and the run that pays for open
pages are real. Values are medians over rounds. Browsers and run share the CPUs of one machine; the CPU time
of the run's own process, which serves the pages, shows what the pages alone cost.
"""

import argparse
import asyncio
import gzip
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

import psutil  # noqa: E402
from playwright.async_api import Browser, Page, async_playwright  # noqa: E402
from tests.ui.browser.made_jobs import MadeJobs, made_job  # noqa: E402

from rollfleet_ui.server import page, served  # noqa: E402
from rollfleet_ui.static_files import FOLDER  # noqa: E402
from rollfleet_ui.token_guard import TokenGuard  # noqa: E402

ROWS = 1000
PAGES = 10
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
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
LONGEST_TASK = """() => new Promise(resolve => {
  let longest = 0, last = performance.now(), until = last + 2000;
  const tick = now => {
    longest = Math.max(longest, now - last); last = now; scrollBy(0, 400);
    now < until ? requestAnimationFrame(tick) : resolve(longest);
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
            shown_s, frames_ms = [], []
            for _ in range(rounds):
                async with visit(browser, guard.url(port)) as visitor:
                    await visitor.goto(guard.url(port))
                    await visitor.goto("about:blank")
                    at = f"http://127.0.0.1:{port}/#{place}"
                    shown_s.append(await seconds_until(visitor, at, ".body .row"))
                    frames_ms.append(await visitor.evaluate(LONGEST_TASK))
            print(
                f"{ROWS:,} {name}: {1000 * statistics.median(shown_s):.0f} ms; the longest frame while it scrolls",
                end=" ",
            )
            print(f"{statistics.median(frames_ms):.0f} ms")
        changing.cancel()


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
    for name, values in found.items():
        rate, cpu = (statistics.median(each) for each in zip(*values, strict=True))
        rounds_of = ", ".join(f"{each:,.0f}" for each, _ in values)
        print(
            f"{name}: {rate:,.0f} frames/s (rounds: {rounds_of}); {100 * cpu:.1f} % of a CPU in the run's own process"
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
        await cost(browser, 5 if quick else 20, 2 if quick else 5)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
