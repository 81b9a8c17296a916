"""Runs a program of TorchRL's with the collectors of this package in place of TorchRL's own."""

import argparse
import runpy
import sys
from pathlib import Path

import torchrl.collectors
import torchrl.collectors.distributed

import rollfleet.torchrl as ours
from rollfleet.cluster.settings import Cluster
from rollfleet.processes.pickled_workload import before_scripts
from rollfleet.torchrl.arguments import elsewhere


def install() -> None:
    """Set the classes of this package on TorchRL's packages of collectors, and where its loaded modules have its own.

    Its own classes are not changed, and stay where TorchRL derives from them.
    """
    homes = (torchrl.collectors, torchrl.collectors.distributed)
    names = [name for name in ours.__all__ if name.endswith("Collector")]
    for path, module in list(sys.modules.items()):
        if path.startswith("torchrl."):
            for name in names:
                if module in homes or name in vars(module):
                    setattr(module, name, getattr(ours, name))


def main() -> None:
    """Run a program of TorchRL's on Rollfleet's workers, as `__main__`."""
    parser = argparse.ArgumentParser(
        prog="python -m rollfleet.torchrl",
        description="Run a program of TorchRL's with the collectors of rollfleet.torchrl in place of its own.",
    )
    parser.add_argument("--workers", type=int, help="workers of each collector; default: as the program says")
    parser.add_argument("--namespace", help="collect in pods of this namespace of a Kubernetes cluster")
    parser.add_argument("--context", help="the context of the kubeconfig")
    parser.add_argument("--image", help="the image of the pods")
    parser.add_argument("--gpus", "--gpu", dest="gpu", type=int, help="GPUs of each pod")
    parser.add_argument("--cpu", help="CPUs of each pod")
    parser.add_argument("--memory", help="memory of each pod, such as 4Gi")
    parser.add_argument("--job", help="collect from the workers of this job, namespace/name")
    parser.add_argument("--nats", help="the address of that job's NATS server")
    parser.add_argument("program", help="the Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args()
    if not Path(given.program).is_file():
        parser.error(f"{given.program}: no such file")
    ours = {"--gpus", *(f"--{name}" for name in vars(given) if name not in ("program", "args"))}
    if behind := [word for word in given.args if word.partition("=")[0] in ours]:
        print(f"{' '.join(behind)}: passed to {given.program}; write it before the program to use it", file=sys.stderr)
    options = {name: value for name, value in vars(given).items() if value is not None}
    elsewhere.update({name: options[name] for name in ("workers", "job", "nats") if name in options})
    of_pods = ("namespace", "context", "image", "gpu", "cpu", "memory")
    if written := {name: options[name] for name in of_pods if name in options}:
        elsewhere["cluster"] = Cluster(**written)
    install()
    before_scripts.append(install)
    sys.argv = [options["program"], *options["args"]]
    sys.path.insert(0, str(Path(options["program"]).resolve().parent))
    runpy.run_path(options["program"], run_name="__main__")
