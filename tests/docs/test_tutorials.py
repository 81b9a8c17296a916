"""The tutorials: their files are written, their commands run in order, and the shown output appears."""

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.pages import BLOCK, environ, shell
from tests.ports import free_ports
from tests.running import running

PAGES = ("tutorials/first-environment", "tutorials/own-policy", "tutorials/from-cleanrl", "troubleshooting", "batches")


def blocks(repository: Path, page: str) -> list[tuple[str, str]]:
    """Return language and text of each block of a page, in order."""
    return BLOCK.findall((repository / f"docs/{page}.md").read_text())


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
            output = shell(f"exec 2>&1\n{text}", tmp_path)
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


def wait_for(process: "subprocess.Popen[str]", words: str) -> None:
    """Read a process's output until these words."""
    assert process.stdout is not None
    assert any(words in line for line in process.stdout), f"it ended without {words!r}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_learner_and_workers_meet_at_the_address_of_the_first_machine(repository: Path, tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    commands = []
    for language, text in blocks(repository, "tutorials/two-machines"):
        if language == "bash":
            commands.append(text.replace("learner.example", "127.0.0.1").replace("4222", port))
        else:
            write_file(text, tmp_path)
    with ExitStack() as stack:

        def start(command: str) -> "subprocess.Popen[str]":
            options = {"cwd": tmp_path, "env": environ(), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            return stack.enter_context(running("bash", "-ec", command, **options))

        wait_for(start(f"exec {commands[0]}"), "Server is ready")
        submit = start(f"exec {commands[1]}")
        wait_for(submit, "rollfleet worker --nats")
        workers, learner = (start(command) for command in commands[2:])
        outputs = [process.communicate()[0] for process in (learner, workers, submit)]
        assert [process.returncode for process in (submit, workers, learner)] == [0, 0, 0], outputs
    assert re.search(r"^20480 \{0: \d+, 1: \d+\}$", outputs[0], re.MULTILINE), outputs
