"""The effect of a fault in one of two workers on the learner's loop: Rollfleet beside its peers.

`python benchmarks/peer_faults.py [--peer-python PATH] [--watch-s 30] [--only NAME,NAME] [--quick]`

Each contender of `benchmarks/contenders` collects CartPole with two workers of 8 environments. After some batches one
worker process gets a signal; then the loop continues for `--watch-s`, and its batches are counted. Last, the loop
itself is killed, and its workers are observed. The loop is a separate process: if it hangs, it is killed and reported.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

CONTENDERS = Path(__file__).parent / "contenders"
NAMES = {
    "rollfleet_two.processes_sync": "Rollfleet, processes, sync",
    "rollfleet_two.processes_async": "Rollfleet, processes, async",
    "rollfleet_two.nats_sync": "Rollfleet, NATS, sync",
    "rollfleet_two.nats_async": "Rollfleet, NATS, async",
    "torchrl_two.sync_vector": "TorchRL MultiSync",
    "torchrl_two.async_vector": "TorchRL MultiAsync",
    "ray_two.sync_serial": "RayCollector, sync",
    "ray_two.async_vector": "RayCollector, async",
}
SIGNALS = {"is killed": signal.SIGKILL, "gets SIGTERM": signal.SIGTERM, "hangs": signal.SIGSTOP}
LEARNER = "learner"  # the fault in which the loop itself is killed
START_S = 120.0
BEFORE = 5  # batches


def main() -> None:
    """Try every fault with every contender, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument(
        "--watch-s", type=float, default=30.0, help="seconds for which the loop is observed after the fault"
    )
    parser.add_argument("--only", default=",".join(NAMES), help="contenders")
    parser.add_argument("--quick", action="store_true", help="Rollfleet's processes alone, for 5 s")
    parser.add_argument("--loop", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.loop:
        loop(given.loop[0], given.loop[1], float(given.loop[2]))
        return
    names = ["rollfleet_two.processes_async"] if given.quick else given.only.split(",")
    watch_s = 5.0 if given.quick else given.watch_s
    print(
        f"| | a worker {' | a worker '.join(SIGNALS)} | the loop is killed |\n|---{'|---' * len(SIGNALS)}|---|",
        flush=True,
    )
    for name in names:
        python = sys.executable if name.startswith("rollfleet") else given.peer_python
        outcomes = [watch(python, name, fault, watch_s) for fault in (*SIGNALS, LEARNER)]
        print(f"| {NAMES[name]} | {' | '.join(outcomes)} |", flush=True)


def watch(python: str, name: str, fault: str, watch_s: float) -> str:
    """Run a loop with a fault, and return its outcome."""
    environ = os.environ | {"PYTHONPATH": str(CONTENDERS), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    command = [python, "-P", str(Path(__file__).resolve()), "--loop", name, fault, str(watch_s)]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        if fault == LEARNER:
            return who_stays(process, watch_s)
        output, _ = process.communicate(timeout=START_S + watch_s + 30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"')]
    if not lines:
        return "did not start"
    last = lines[-1]
    if "error" in last:
        return f"raises after {last['after_s']:.1f} s: {last['error']}"
    if last["quiet_s"] > watch_s / 2:
        return f"nothing comes any more (watched for {watch_s:g} s)"
    return f"goes on: {last['batches'] / watch_s:.0f} batches/s, {last['before']:.0f} before"


def who_stays(process: "subprocess.Popen[str]", watch_s: float) -> str:
    """Kill the loop once it has reported its workers; return their outcome. In any case, end them."""
    assert process.stdout is not None
    report = next((json.loads(line) for line in process.stdout if line.startswith('{"')), None)
    process.kill()
    process.wait()
    if report is None:
        return "did not start"
    killed_s = time.monotonic()
    workers = [psutil.Process(pid) for pid in report["workers"] if psutil.pid_exists(pid)]
    _, stay = psutil.wait_procs(workers, timeout=watch_s)
    took_s = time.monotonic() - killed_s
    for each in stay:
        each.kill()
    return f"{len(stay)} workers stay (watched for {watch_s:g} s)" if stay else f"workers end within {took_s:.1f} s"


def loop(name: str, fault: str, watch_s: float) -> None:
    """Collect, break one worker, continue; print the outcome as JSON."""
    from work import Work

    module, _, function = name.partition(".")
    with getattr(importlib.import_module(module), function)(Work(workers=2)) as running:
        running.next_batch()
        began_s = time.monotonic()
        for _ in range(BEFORE):
            running.next_batch()
        before = BEFORE / (time.monotonic() - began_s)
        if fault == LEARNER:
            print(json.dumps({"workers": list(running.worker_pids)}), flush=True)
            while True:
                running.next_batch()
        os.kill(running.worker_pids[0], SIGNALS[fault])
        killed_s = last_s = time.monotonic()
        batches = 0

        def tell_and_end() -> None:  # even if the loop hangs
            quiet_s = time.monotonic() - last_s
            print(json.dumps({"batches": batches, "quiet_s": quiet_s, "before": before}), flush=True)
            for pid in running.worker_pids:  # nothing else ends a stopped process
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            os._exit(0)

        threading.Timer(watch_s, tell_and_end).start()
        try:
            while True:
                running.next_batch()
                batches, last_s = batches + 1, time.monotonic()
        except BaseException as error:
            words = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            print(json.dumps({"error": words[:120], "after_s": time.monotonic() - killed_s}), flush=True)
            os._exit(0)


if __name__ == "__main__":
    main()
