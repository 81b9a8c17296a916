"""Rollfleet in this process."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium

import rollfleet
from work import Plain, Running, Work, make


def built_in(work: Work) -> rollfleet.ActorCritic:
    """The policy `mlp`; it always has a critic."""
    env: gymnasium.Env[Any, Any] = make(work.env)
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space, hidden=work.hidden)
    env.close()
    return policy


@contextmanager
def _collector(work: Work, make_policy: Callable[[Work], Any], backend: str = "gymnasium") -> Iterator[Running]:
    frames: int = work.frames
    with rollfleet.Collector(
        work.env, make_policy(work), num_envs=work.num_envs, frames_per_batch=frames, backend=backend
    ) as collector:
        yield Running(next_batch=lambda: (next(collector), frames))


@contextmanager
def servers(work: Work) -> Iterator[Running]:
    """A collector over two servers: central inference."""
    with _over(work, workers=2) as running:
        yield running


@contextmanager
def hosts(work: Work) -> Iterator[Running]:
    """The same over the network: two programs `rollfleet env-server`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        certificate = _certificate(folder)
        servers = [f"localhost:{stack.enter_context(_host(certificate))}" for _ in range(2)]
        yield stack.enter_context(_over(work, servers=servers, certificate=certificate))


@contextmanager
def _over(work: Work, **servers: Any) -> Iterator[Running]:
    everyone = max(work.workers, 1)  # of as many workers
    envs = rollfleet.make_vec(partial(make, work.env), num_envs=everyone * work.num_envs, **servers)
    with rollfleet.Collector(envs, built_in(work), frames_per_batch=everyone * work.frames) as collector:
        yield Running(next_batch=lambda: (next(collector), everyone * work.frames))


@contextmanager
def _host(certificate: Path) -> Iterator[str]:
    """Start an environment server, and return its port."""
    command = [sys.executable, "-m", "rollfleet", "env-server", "--port=0", f"--certificate={certificate}"]
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}  # it imports `work`
    with subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def _certificate(folder: Path) -> Path:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = ["-subj", "/CN=environments", "-addext", "subjectAltName=DNS:environments"]
    files = ["-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", *names, *files], check=True, capture_output=True)
    certificate.write_bytes(key.read_bytes() + certificate.read_bytes())
    return certificate


# The contenders. To Rollfleet `Plain` is opaque.
plain_torch = partial(_collector, make_policy=Plain)
mlp = partial(_collector, make_policy=built_in)
envpool_torch = partial(_collector, make_policy=Plain, backend="envpool")
envpool_mlp = partial(_collector, make_policy=built_in, backend="envpool")
