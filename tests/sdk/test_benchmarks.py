"""That the benchmarks run and their report is written; not what they measure."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(repository: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(repository / "benchmarks" / script), *arguments]
    # As from a shell, where no warning is an error.
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": ""}, timeout=110
    )


def results(repository: Path, folder: Path, *only: str) -> dict[str, Any]:
    """What `peers.py` wrote."""
    file = folder / "results.json"
    done = run(repository, "peers.py", "--quick", "--only", ",".join(only), "--json", str(file))
    assert done.returncode == 0, done.stderr
    written: dict[str, Any] = json.loads(file.read_text())
    return written


def test_contenders_take_turns_and_all_of_them_have_figures_for_each_round(repository: Path, tmp_path: Path) -> None:
    written = results(repository, tmp_path, "cartpole-1:by_hand.list_numpy", "cartpole-1:rollfleet_here.mlp")
    assert written["machine"]["cores"] >= 1
    contenders = written["cases"]["cartpole-1"]["contenders"]
    assert set(contenders) == {"by_hand.list_numpy", "rollfleet_here.mlp"}
    for figures in contenders.values():
        assert len(figures["frames/s"]) == 2
        assert min(figures["frames/s"]) > 0


@pytest.mark.parametrize("contender", ["processes_async", "nats_async"])
def test_workers_are_measured_while_weights_go_out_after_each_batch(
    repository: Path, tmp_path: Path, contender: str
) -> None:
    written = results(repository, tmp_path, f"two-processes:rollfleet_two.{contender}")
    figures = written["cases"]["two-processes"]["contenders"][f"rollfleet_two.{contender}"]
    assert min(figures["frames/s"]) > 0
    assert min(figures["worker MB"]) > 0


def test_a_contender_that_cannot_run_is_reported_and_the_others_are_measured(repository: Path, tmp_path: Path) -> None:
    file, chosen = tmp_path / "results.json", "imports:imports.rollfleet_api,imports:imports.torchrl"
    done = run(repository, "peers.py", "--quick", "--only", chosen, "--json", str(file), "--peer-python", "/bin/false")
    assert done.returncode == 0, done.stderr
    contenders = json.loads(file.read_text())["cases"]["imports"]["contenders"]
    assert "error" in contenders["imports.torchrl"]
    assert contenders["imports.rollfleet_api"]["import s"]


def made_up() -> dict[str, Any]:
    """Results of a few contenders, with rates that tell a model: 10 us a step, 5 us an environment."""

    def case(name: str, contenders: dict[str, float], measure: str = "rate") -> dict[str, Any]:
        figures = {who: {"frames/s": [rate, rate, rate]} for who, rate in contenders.items()}
        told = {"title": name, "measure": measure, "work": {}, "date": "2026-01-01", "load": 0.1}
        return {**told, "contenders": figures}

    nats = "rollfleet_two.nats_async"
    first = {"rollfleet_here.mlp": 600.0, "sb3_here.rollouts": 100.0, "torchrl_here.serial": 100.0}
    cases = {"cartpole-1": case("CartPole", first)}
    cases["cartpole-1"]["contenders"]["by_hand.list_numpy"] = {"error": "Traceback\nno such thing"}
    for envs in (1, 8, 64):
        cases[f"scaling-envs-{envs}"] = case("envs", {nats: envs / (10e-6 + envs * 5e-6)})
    for size in (64, 4096):
        cases[f"scaling-bytes-{size}"] = case("bytes", {nats: 1 / (1e-5 + size * 1e-9)})
        cases[f"scaling-parameters-{size}"] = case("parameters", {nats: 1024 / (1e-2 + 4 * size * 1e-9)})
    machine = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "system": "Linux", "python": "3", "packages": {}}
    return {"machine": machine, "cases": cases}


def test_the_report_says_what_was_met_and_fits_the_model(repository: Path, tmp_path: Path) -> None:
    docs, file = tmp_path / "docs", tmp_path / "results.json"
    (docs / "images").mkdir(parents=True)
    for name in ("benchmarks.md", "scaling.md"):
        shutil.copy(repository / "docs" / name, docs / name)
    file.write_text(json.dumps(made_up()))
    done = run(repository, "report", str(file), str(docs))
    assert done.returncode == 0, done.stderr
    benchmarks, scaling = ((docs / name).read_text() for name in ("benchmarks.md", "scaling.md"))
    (against_sb3,) = re.findall(r"\| cartpole-1 .* Stable-Baselines3 .*", benchmarks)
    assert "6.00 | ≥ 5 | met" in against_sb3
    (against_torchrl,) = re.findall(r"\| cartpole-1 .* SerialEnv .*", benchmarks)
    assert "**not met**" in against_torchrl
    assert "could not run: no such thing" in benchmarks
    assert "A step costs 10.0 µs and 5.00 µs for each environment; a byte of an observation 1.00 ns" in scaling
    assert (docs / "images" / "bench-peers.svg").stat().st_size > 0
    assert (docs / "images" / "bench-scaling.svg").stat().st_size > 0
