"""The tutorials: their files are written, their commands run in order, and the shown output appears."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import BLOCK, environ
from tests.ports import free_ports

PAGES = ("tutorials/first-environment", "tutorials/own-policy", "tutorials/from-cleanrl", "troubleshooting", "batches")


def blocks(repository: Path, page: str) -> list[tuple[str, str]]:
    """Return language and text of each block of a page, in order."""
    return BLOCK.findall((repository / f"docs/{page}.md").read_text())


def shell(command: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["bash", "-ec", command],
        cwd=folder,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def write_file(text: str, folder: Path) -> None:
    """Write a block to the file that its first line names."""
    name = text.partition("\n")[0].removeprefix("# ")
    assert re.fullmatch(r"\w+\.(py|yaml)", name), f"a block starts with its file's name, not with {name!r}"
    (folder / name).write_text(text)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_tutorial_print_what_it_shows(repository: Path, tmp_path: Path, page: str) -> None:
    (tmp_path / "cleanrl_ppo.py").write_text((repository / "examples/cleanrl_ppo.py").read_text())
    output = ""
    for language, text in blocks(repository, page):
        if language in ("python", "yaml"):
            write_file(text, tmp_path)
        elif language == "bash":
            process = shell(text, tmp_path)
            output, _ = process.communicate()
            assert process.returncode == 0, output
        elif language == "text":
            missing = [line for line in text.splitlines() if line not in output]
            assert not missing, output
        else:
            assert language == "diff"


def test_the_lines_from_cleanrl_are_those_of_the_example(repository: Path) -> None:
    example = (repository / "examples/cleanrl_ppo.py").read_text().splitlines()
    shown = [
        line
        for language, text in blocks(repository, "tutorials/from-cleanrl")
        if language == "diff"
        for line in text.splitlines()
    ]
    added = [line[1:] for line in shown if line.startswith("+")]
    assert len(added) == 12
    assert [line for line in added if line not in example] == []


@pytest.fixture
def processes() -> "Iterator[list[subprocess.Popen[str]]]":
    """Collect processes; those that still run after the test are stopped."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


def wait_for(process: "subprocess.Popen[str]", words: str) -> None:
    """Read a process's output until these words."""
    assert process.stdout is not None
    assert any(words in line for line in process.stdout), f"it ended without {words!r}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_learner_and_workers_meet_at_the_address_of_the_first_machine(
    repository: Path, tmp_path: Path, processes: "list[subprocess.Popen[str]]"
) -> None:
    port = str(free_ports(1)[0])
    commands = []
    for language, text in blocks(repository, "tutorials/two-machines"):
        if language == "bash":
            commands.append(text.replace("learner.example", "127.0.0.1").replace("4222", port))
        else:
            write_file(text, tmp_path)
    for command, ready in zip(commands[:2], ("Server is ready", "rollfleet worker --nats"), strict=True):
        processes.append(shell(f"exec {command}", tmp_path))
        wait_for(processes[-1], ready)
    processes += [shell(command, tmp_path) for command in commands[2:]]
    _, submit, workers, learner = processes
    outputs = [process.communicate()[0] for process in (learner, workers, submit)]
    assert [process.returncode for process in processes[1:]] == [0, 0, 0], outputs
    assert re.search(r"^20480 \{0: \d+, 1: \d+\}$", outputs[0], re.MULTILINE), outputs
