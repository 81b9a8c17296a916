"""The programs of the page about `make_vec` run."""

import shutil
from pathlib import Path

import pytest
from tests.pages import blocks_of, environ, shell
from tests.running import running


def programs(repository: Path, folder: Path) -> list[Path]:
    """Write the Python programs of the page into files, in order."""
    files = []
    for number, block in enumerate(blocks_of(repository / "docs/make-vec.md", "python")):
        files.append(folder / f"block{number}.py")
        files[-1].write_text(block)
    return files


def test_the_programs_of_the_page_run(repository: Path, tmp_path: Path) -> None:
    elsewhere = ("host-1", "cluster=")  # `tests/cluster` has the second one's
    here = [each for each in programs(repository, tmp_path) if not any(name in each.read_text() for name in elsewhere)]
    outputs = [shell(f"python -W error {file.name}", tmp_path) for file in here]
    assert outputs[:2] == ["", ""]
    assert outputs[2].count("torch.Size([16, 64])") == 4


@pytest.mark.skipif(not shutil.which("openssl"), reason="there is no program `openssl`")
def test_the_servers_of_the_page_serve_its_program(repository: Path, tmp_path: Path) -> None:
    (block,) = [each for each in blocks_of(repository / "docs/make-vec.md", "bash") if "openssl" in each]
    make_certificate, _, serve = block.rpartition("rollfleet env-server")
    shell(make_certificate, tmp_path)
    command = f"exec rollfleet env-server {serve.strip()}".replace("7700", "0")
    with running("bash", "-ec", command, cwd=tmp_path, env=environ(), stdout=-1) as server:
        assert server.stdout
        port = server.stdout.readline().split()[-1]
        (program,) = [each for each in programs(repository, tmp_path) if "host-1" in each.read_text()]
        text = program.read_text()
        for name in ("host-1", "host-2"):
            text = text.replace(f"{name}:7700", f"localhost:{port}")
        program.write_text(text + "print(envs.reset()[0].shape)\nenvs.close()\n")
        assert shell(f"python -W error {program.name}", tmp_path) == "(64, 4)\n"
