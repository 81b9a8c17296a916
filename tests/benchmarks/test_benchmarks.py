"""That the benchmarks run and their report is written; not what they measure."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.running import output_of


def run(repository: Path, script: str, *arguments: str) -> str:
    command = (sys.executable, "-P", repository / "benchmarks" / script, *arguments)
    return output_of(*command, env={**os.environ, "PYTHONWARNINGS": ""}, timeout=110)  # as from a shell


def row_of(output: str) -> dict[str, str]:
    """Return the cells of a table's only row, by their heads."""
    heads, _, row = ([cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines())
    return dict(zip(heads, row, strict=True))


def results(repository: Path, folder: Path, *only: str, **options: str) -> dict[str, Any]:
    """What `peers.py` wrote."""
    file = folder / "results.json"
    more = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    run(repository, "peers.py", "--quick", "--only", ",".join(only), "--json", str(file), *more)
    written: dict[str, Any] = json.loads(file.read_text())
    return written


@pytest.mark.slow
def test_contenders_take_turns_and_all_of_them_have_figures_for_each_round(repository: Path, tmp_path: Path) -> None:
    written = results(repository, tmp_path, "cartpole-1:by_hand.list_numpy", "cartpole-1:rollfleet_here.mlp")
    assert written["machine"]["cores"] >= 1
    contenders = written["cases"]["cartpole-1"]["contenders"]
    assert set(contenders) == {"by_hand.list_numpy", "rollfleet_here.mlp"}
    for figures in contenders.values():
        assert len(figures["frames/s"]) == 2
        assert min(figures["frames/s"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("contender", ["processes_async", "nats_async"])
def test_workers_are_measured_while_weights_go_out_after_each_batch(
    repository: Path, tmp_path: Path, contender: str
) -> None:
    written = results(repository, tmp_path, f"two-processes:rollfleet_two.{contender}")
    figures = written["cases"]["two-processes"]["contenders"][f"rollfleet_two.{contender}"]
    assert min(figures["frames/s"]) > 0
    assert min(figures["worker MB"]) > 0


@pytest.mark.slow
def test_a_contender_that_cannot_run_is_reported_and_the_others_are_measured(repository: Path, tmp_path: Path) -> None:
    chosen = ("imports:imports.rollfleet_api", "imports:imports.torchrl")
    contenders = results(repository, tmp_path, *chosen, peer_python="/bin/false")["cases"]["imports"]["contenders"]
    assert "error" in contenders["imports.torchrl"]
    assert contenders["imports.rollfleet_api"]["import s"]


@pytest.mark.slow
def test_large_batches_are_measured_beside_a_client_by_hand(repository: Path) -> None:
    row = row_of(run(repository, "delivery.py", "--quick"))
    assert list(row) == ["Rollfleet, MB/s", "by hand, MB/s", "ratio"]
    assert all(float(figure.replace(",", "")) > 0 for figure in row.values())


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "kept"), [("Async", 2), ("Sync", 0)])
def test_each_batch_of_many_workers_is_yielded_or_still_kept_by_its_worker(
    repository: Path, mode: str, kept: int
) -> None:
    row = row_of(run(repository, "many_workers.py", "--quick", "--observations", "cartpole", "--mode", mode))
    figures = {head: float(figure.replace(",", "")) for head, figure in row.items() if head != "mode"}
    assert figures["workers"] == 4
    assert figures["lost"] == figures["cut"] == 0
    assert figures["yielded"] <= figures["sent"] <= figures["yielded"] + kept * figures["workers"]
    measured = ("learner, µs", "server, µs", "worker, µs", "p50, ms", "p99, ms", "frames/s", "bytes a frame")
    assert min(figures[each] for each in measured) > 0


@pytest.mark.slow
def test_torchrls_environments_are_measured_over_nats(repository: Path) -> None:
    output = run(repository, "torchrl_envs.py", "--quick", "--only", "over NATS")
    assert float(re.findall(r"two processes over NATS +rollfleet +(\d+) frames/s", output)[0]) > 0


@pytest.mark.slow
def test_a_vector_of_servers_is_measured_beside_those_of_gymnasium_and_envpool(repository: Path) -> None:
    output = run(repository, "env_servers.py", "--quick", "--only", "8 CartPole")
    rates = dict(re.findall(r"1 server +(\S.*?) +frames/s: (\S+)", output))
    assert set(rates) == {"SyncVectorEnv", "AsyncVectorEnv", "make_vec", "make_vec over TLS", "EnvPool"}
    assert min(map(float, rates.values())) > 0


@pytest.mark.slow
def test_lag_is_within_its_limit_and_each_limit_has_a_curve(repository: Path, tmp_path: Path) -> None:
    output = run(repository, "lag_curve.py", "--quick", "--picture", str(tmp_path / "lag.png"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines()[2:]]
    assert [row[0] for row in rows] == ["0", "32"]
    assert all(float(row[1]) <= int(row[0]) for row in rows)
    assert (tmp_path / "lag.png").stat().st_size > 0


FILLED = ("index", "benchmarks", "scaling", "make-vec")


def made_up() -> dict[str, Any]:
    """Results of a few contenders, and a curve: 1,000 frames a second for each environment."""

    def case(name: str, contenders: dict[str, float], measure: str = "rate") -> dict[str, Any]:
        figures = {who: {"frames/s": [rate, rate, rate]} for who, rate in contenders.items()}
        fields = {"title": name, "measure": measure, "work": {}, "date": "2026-01-01", "load": 0.1}
        return {**fields, "contenders": figures}

    first = {"rollfleet_here.mlp": 600.0, "sb3_here.rollouts": 100.0, "torchrl_here.serial": 100.0}
    cases = {"cartpole-1": case("CartPole", first)}
    cases["cartpole-1"]["contenders"]["by_hand.list_numpy"] = {"error": "Traceback\nno such thing"}

    for envs in (1, 8, 64):
        cases[f"scaling-envs-{envs}"] = case("envs", {"rollfleet_two.nats_async": 1e3 * envs})
    waiting = {"rollfleet_two.nats_async": {"idle CPU %": [0.5, 1.5, 2.0], "learner idle CPU %": [0.1, 0.2, 3.0]}}
    cases["idle"] = case("idle", {}, "idle") | {"contenders": waiting}
    machine = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "system": "Linux", "python": "3", "packages": {}}
    return {"machine": machine, "cases": cases}


def test_the_report_says_what_was_met_and_has_each_curve(repository: Path, tmp_path: Path) -> None:
    docs, file = tmp_path / "docs", tmp_path / "results.json"
    (docs / "images").mkdir(parents=True)
    page = tmp_path / "benchmarks" / "RESULTS.md"
    for filled in ("README.md", "benchmarks/RESULTS.md", *(f"docs/{name}.md" for name in FILLED)):
        (tmp_path / filled).parent.mkdir(exist_ok=True)
        shutil.copy(repository / filled, tmp_path / filled)
    file.write_text(json.dumps(made_up()))
    run(repository, "report", str(file), str(docs))
    benchmarks = page.read_text()
    (against_sb3,) = re.findall(r"\| cartpole-1 .* Stable-Baselines3 .*", benchmarks)
    assert "6.00 | ≥ 5 | met" in against_sb3
    (against_torchrl,) = re.findall(r"\| cartpole-1 .* SerialEnv .*", benchmarks)
    assert "**not met**" in against_torchrl
    assert "could not run: `no such thing`" in benchmarks
    assert "| idle, idle CPU % | NATS, async | 1.50 | ≤ 1 | **not met** |" in benchmarks
    assert "| idle, learner idle CPU % | NATS, async | 0.20 | ≤ 1 | met |" in benchmarks
    assert "| Rollfleet, NATS, async | 1,000 | 8,000 | 64,000 |" in benchmarks
    assert "| 1, 8, 64 environments | 1,000, 8,000, 64,000 |" in (docs / "scaling.md").read_text()
    assert (docs / "images" / "bench-peers.svg").stat().st_size > 0
    assert (docs / "images" / "bench-scaling.svg").stat().st_size > 0
