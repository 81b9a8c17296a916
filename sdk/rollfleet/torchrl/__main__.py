"""`python -m rollfleet.torchrl program.py`: see `rollfleet.torchrl.program`."""

import argparse

from rollfleet.cluster.settings import Cluster
from rollfleet.torchrl.placement import Placement
from rollfleet.torchrl.program import run

_CLUSTER = ("namespace", "context", "image", "cpu", "memory")


def main() -> None:
    """Run a program of TorchRL's on Rollfleet's workers."""
    parser = argparse.ArgumentParser(
        prog="python -m rollfleet.torchrl",
        description="Run a program of TorchRL's with the collectors of rollfleet.torchrl in place of its own.",
    )
    parser.add_argument("--workers", type=int, help="workers of each collector; default: as the program says")
    parser.add_argument("--namespace", help="collect in pods of this namespace of a Kubernetes cluster")
    parser.add_argument("--context", help="the context of the kubeconfig")
    parser.add_argument("--image", help="the image of the pods")
    parser.add_argument("--gpus", "--gpu", type=int, help="GPUs of each pod")
    parser.add_argument("--cpu", help="CPUs of each pod")
    parser.add_argument("--memory", help="memory of each pod, such as 4Gi")
    parser.add_argument("--job", help="collect from the workers of this job, namespace/name")
    parser.add_argument("--nats", help="the address of that job's NATS server")
    parser.add_argument("program", help="the Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args()
    written = {name: getattr(options, name) for name in _CLUSTER if getattr(options, name) is not None}
    if options.gpus is not None:
        written["gpu"] = options.gpus
    cluster = Cluster(**written) if written else None
    place = Placement(workers=options.workers, cluster=cluster, job=options.job, nats=options.nats)
    run(options.program, options.args, place)


if __name__ == "__main__":
    main()
