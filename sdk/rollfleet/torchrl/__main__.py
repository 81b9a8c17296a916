"""`python -m rollfleet.torchrl program.py`: see `rollfleet.torchrl.program`."""

import argparse

from rollfleet.cluster.settings import Cluster
from rollfleet.torchrl.program import run

_CLUSTER = ("namespace", "context", "image", "gpu", "cpu", "memory")


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
    parser.add_argument("--gpus", "--gpu", dest="gpu", type=int, help="GPUs of each pod")
    parser.add_argument("--cpu", help="CPUs of each pod")
    parser.add_argument("--memory", help="memory of each pod, such as 4Gi")
    parser.add_argument("--job", help="collect from the workers of this job, namespace/name")
    parser.add_argument("--nats", help="the address of that job's NATS server")
    parser.add_argument("program", help="the Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    options = vars(parser.parse_args())
    written = {name: options[name] for name in _CLUSTER if options[name] is not None}
    place = {name: options[name] for name in ("workers", "job", "nats")}
    run(options["program"], options["args"], place | {"cluster": Cluster(**written) if written else None})


if __name__ == "__main__":
    main()
