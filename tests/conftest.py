"""What every test starts from: the repository, a nats-server, and how hypothesis searches."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from tests.held import left_threads

if TYPE_CHECKING:
    from tests.control.kubernetes import ApiServer
    from tests.control.wire.job_nats import OrganisationNats
    from tests.job_server import Server
    from tests.sdk.cli.program import Workplace

# No deadline: a slow example on a busy machine proves nothing. In CI the search is the same each time, so that a
# failure is the change's fault; on a desk it keeps exploring.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Tests run in parallel: threads of torch in one process would wait, at full load, for cores that another process has.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process that a test starts finds the tests' own environments and policies by name. At the end of the path, never at
# its front: the repository's folder `operator` has the name of a module of the standard library.
sys.path.append(str(Path(__file__).parents[1]))

# A job in the background of a shell that is a script ignores Ctrl-C, and so would each program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SHARED = ("tests/cluster/", "tests/control/api_server/", "tests/sdk/cluster/", "tests/ui/browser/")
"""Folders whose tests share a server, or a browser, that takes long to start; the longest first."""

STARTS_PROCESSES = {"apart", "collect", "nats_server", "processes", "server", "shared_server", "workplace"}
"""Fixtures of tests that take longer than others."""


NEEDS_A_CLUSTER = {"api_server"}
"""Fixtures whose tests get the mark `cluster`; in other folders a module has it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a cluster. Begin with what takes longest: no process waits for another one's long module then."""
    for item in items:
        if not NEEDS_A_CLUSTER.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
    slow = {each.path for each in items if each.get_closest_marker("slow")}
    long = {each.path for each in items if not STARTS_PROCESSES.isdisjoint(getattr(each, "fixturenames", ()))}

    def order(item: pytest.Item) -> tuple[int, bool, bool]:
        shared = next((at for at, folder in enumerate(SHARED) if item.nodeid.startswith(folder)), len(SHARED))
        return shared, item.path not in slow, item.path not in long

    items.sort(key=order)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in parallel, keep those of a module, or of a folder in `SHARED`, in one process."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in SHARED if nodeid.startswith(folder)), nodeid.partition("::")[0])

    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which folders took the time, of all processes together."""
    spent = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for each in reports:
            if isinstance(each, pytest.TestReport):
                spent[str(Path(each.nodeid.partition("::")[0]).parent)] += each.duration
    if len(spent) > 1:
        most = ", ".join(
            f"{folder} {spent[folder]:.0f}" for folder in sorted(spent, key=spent.__getitem__, reverse=True)[:8]
        )
        terminalreporter.write_line(f"seconds of {sum(spent.values()):.0f}: {most}")


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Restores the handlers of Ctrl-C and SIGTERM: a program that a test runs in this process leaves its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _ends_its_threads() -> Iterator[None]:
    """Fails a test that leaves a thread of ours: it would be in the way of another."""
    before = set(threading.enumerate())
    yield
    assert left_threads(before) == []


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ApiServer]":
    """A Kubernetes API server with our CRD; one for all tests of a process."""
    from tests.control.chart.helm import find
    from tests.control.kubernetes import ABSENT, PROGRAMS, ApiServer, serve_definition

    if not all(find(program) for program in PROGRAMS) or not shutil.which("openssl"):
        pytest.skip(ABSENT)
    server = ApiServer(tmp_path_factory.mktemp("api-server"))
    serve_definition(server)
    yield server
    server.stop()


@pytest.fixture
def nats_server(tmp_path: Path) -> "Iterator[OrganisationNats]":
    """A running nats-server of an organisation, for all jobs; stopped after the test."""
    from tests.control.wire.job_nats import OrganisationNats

    server = OrganisationNats(tmp_path / "nats")
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> "Iterator[Server]":
    """A running nats-server for the job `default/test`; stopped after the test."""
    from tests.job_server import Server

    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def project(repository: Path) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    content: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return content


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution as it would be released, built from the repository."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=repository, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def workplace(tmp_path: Path) -> "Iterator[Workplace]":
    """Provide a folder for a job; after the test, end what was started in it, and still runs."""
    from tests.sdk.cli.program import Workplace

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    workplace = Workplace(tmp_path, temporary)
    yield workplace
    workplace.end()
