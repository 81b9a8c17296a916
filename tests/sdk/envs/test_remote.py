"""Vectors whose environments are in servers on other hosts. That they have the same numbers is in `test_vector`."""

import logging
import multiprocessing
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.running import gone
from tests.sdk.envs.hosts import Host, write_certificate
from tests.waiting import wait_until

import rollfleet
from rollfleet.envs import remote
from rollfleet.envs.server_process import GRACE_S
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.errors import ConnectionFailed, EnvironmentFailed, EnvironmentInvalid, JobInvalid
from rollfleet_api.address import JOB, URL, WORKER
from rollfleet_api.env_servers import CERTIFICATE, COUNT, SERVERS
from rollfleet_api.job import EnvServersSpec, EnvSpec, Vectorization


class Light(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says what its server is."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    @property
    def server(self) -> tuple[int, bool]:
        return os.getpid(), "torch" in sys.modules


def test_environments_end_with_their_vector_and_their_server_has_no_torch(certificate: Path) -> None:
    with Host(certificate) as host:
        envs = rollfleet.make_vec(Light, num_envs=2, servers=[host.address], certificate=certificate)
        (pid, has_torch), _ = envs.get_attr("server")
        assert host.vectors() == [pid]
        assert not has_torch
        envs.close()
        assert gone([pid])


@pytest.mark.parametrize(("ends", "code"), [(signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_environments_end_with_their_server(ends: signal.Signals, code: int, certificate: Path) -> None:
    with Host(certificate) as host:
        envs = rollfleet.make_vec(Light, servers=[host.address], certificate=certificate)
        envs.reset()
        held = host.vectors()
        os.kill(host.pid, ends)
        assert host.program.wait(10) == code
        assert gone(held)
        with pytest.raises(EnvironmentFailed, match=rf"environment server localhost:{host.port} closed the connection"):
            envs.step([0])
        envs.close()


def test_a_server_that_is_terminated_waits_until_its_vectors_are_gone(certificate: Path) -> None:
    with Host(certificate) as host:
        envs = rollfleet.make_vec("CartPole-v1", servers=[host.address], certificate=certificate)
        host.program.terminate()

        def refused() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("localhost", host.port)) != 0

        wait_until(refused)
        envs.reset()
        envs.step([0])
        envs.close()
        assert host.program.wait(10) == 143, "Kubernetes would take 0 for its last word"


def test_a_server_without_a_vector_ends_after_its_timeout_and_a_probe_is_no_vector(certificate: Path) -> None:
    with Host(certificate, idle_timeout_s=3) as host:
        envs = rollfleet.make_vec("CartPole-v1", servers=[host.address], certificate=certificate)
        with pytest.raises(subprocess.TimeoutExpired):
            host.program.wait(5)
        envs.close()
        with pytest.raises(subprocess.TimeoutExpired):
            host.program.wait(0.5)
        while host.program.poll() is None:
            with suppress(OSError):
                socket.create_connection(("localhost", host.port)).close()
            time.sleep(0.1)
        assert host.program.returncode == 0


def test_recv_tells_of_a_lost_server_each_time(certificate: Path) -> None:
    with Host(certificate) as host:
        envs = rollfleet.make_vec("CartPole-v1", servers=[host.address], certificate=certificate)
        envs.reset()
        os.kill(host.vectors()[0], signal.SIGKILL)
        for _ in range(3):
            envs.send([0])
            with pytest.raises(EnvironmentFailed, match="closed the connection"):
                envs.recv()
        envs.close()


def test_a_vector_waits_for_a_server_while_a_tunnel_ends_its_connections(certificate: Path) -> None:
    tunnel, begun = socket.create_server(("localhost", 0)), list[Host]()

    def serve() -> None:
        client, _ = tunnel.accept()
        client.recv(1 << 16)
        tunnel.close()
        client.shutdown(socket.SHUT_RDWR)
        client.close()
        begun.append(Host(certificate, port))

    port = tunnel.getsockname()[1]
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        envs = rollfleet.make_vec("CartPole-v1", servers=[f"localhost:{port}"], certificate=certificate)
        assert envs.reset()[0].shape == (1, 4)
        envs.close()
    finally:
        thread.join()
        begun[0].close()


def test_a_reset_waits_for_a_server_that_starts_again(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "_TOLD_S", 0.0)
    with Host(certificate) as host:
        envs = rollfleet.make_vec("CartPole-v1", servers=[host.address], certificate=certificate)
        first, _ = envs.reset(seed=0)
    with pytest.raises(EnvironmentFailed):
        envs.step([0])
    found: list[Any] = []
    with caplog.at_level(logging.WARNING):
        waiting = threading.Thread(target=lambda: found.append(envs.reset(seed=0)[0]))
        waiting.start()
        wait_until(lambda: f"waits for environment server localhost:{host.port} since" in caplog.text)
    with Host(certificate, host.port):
        waiting.join()
        np.testing.assert_array_equal(found[0], first)
        envs.close()


def test_a_collector_goes_on_with_new_episodes_when_a_server_is_killed(certificate: Path) -> None:
    with Host(certificate) as one, Host(certificate) as other:
        servers = [one.address, other.address]
        envs = rollfleet.make_vec("CartPole-v1", num_envs=4, servers=servers, certificate=certificate)
        policy = rollfleet.ActorCritic(envs.single_observation_space, envs.single_action_space)
        with rollfleet.Collector(envs, policy, frames_per_batch=4 * 20, env_failures={}) as collector:
            before = next(collector).clone()
            os.kill(other.vectors()[0], signal.SIGKILL)
            after = next(collector)
        new = after["collector", "traj_ids"][:, 0] > before["collector", "traj_ids"].max()
        assert new.tolist()[2:] == [True, True]
        assert (after["observation"][2:, 0].abs() <= 0.05).all()  # a first one
        assert collector.stats().failed_episodes == {"ChildProcessError": 2}


class Hanging(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its fifth step never ends."""

    steps = 0

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        self.steps += 1
        while self.steps == 5:
            signal.pause()
        return super().step(action)


def test_a_process_that_hangs_ends_with_its_connection(certificate: Path) -> None:
    with Host(certificate) as host:
        envs = rollfleet.make_vec(Hanging, servers=[host.address], certificate=certificate)
        (hanging,) = host.vectors()
        policy = rollfleet.ActorCritic(envs.single_observation_space, envs.single_action_space)
        failures = {"stepTimeoutSeconds": 0.2, "maxShare": 1.0}
        with rollfleet.Collector(envs, policy, frames_per_batch=8, env_failures=failures) as collector:
            next(collector)
            assert collector.stats().failed_episodes["TimeoutError"]
            assert gone([hanging])


def test_without_a_rule_for_failures_the_batch_after_the_error_is_of_new_environments(certificate: Path) -> None:
    with Host(certificate) as host:
        envs = rollfleet.make_vec("CartPole-v1", num_envs=2, servers=[host.address], certificate=certificate)
        policy = rollfleet.ActorCritic(envs.single_observation_space, envs.single_action_space)
        with rollfleet.Collector(envs, policy, frames_per_batch=2 * 20) as collector:
            next(collector)
            os.kill(host.vectors()[0], signal.SIGKILL)
            with pytest.raises(EnvironmentFailed, match="closed the connection"):
                next(collector)
            assert (next(collector)["observation"][:, 0].abs() <= 0.05).all()


def connect(host: Host, certificate: Path) -> Any:
    return rollfleet.make_vec("CartPole-v1", servers=[host.address], certificate=certificate)


def test_a_process_that_the_program_forks_keeps_no_connection_open(certificate: Path) -> None:
    with Host(certificate) as host:
        envs = connect(host, certificate)
        held = host.vectors()
        forked = multiprocessing.get_context("fork").Process(target=signal.pause)
        forked.start()
        envs.close()
        ended = gone(held)
        forked.kill()
        forked.join()
        assert ended


class Lingering(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Closes more slowly than a process that hangs may; then it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._file = file

    def close(self) -> None:
        time.sleep(GRACE_S + 1.5)
        self._file.touch()


def test_an_environment_that_closes_slowly_is_not_killed(certificate: Path, tmp_path: Path) -> None:
    file = tmp_path / "closed"
    with Host(certificate) as host:
        launch = remote.RemoteServers([host.address], certificate)
        ProcessVectorEnv([partial(Lingering, file)], 1, sample=Light, launch=launch).close()
        wait_until(file.exists, 15)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits another process")
def test_a_server_that_could_take_no_vector_takes_the_next(certificate: Path) -> None:
    with Host(certificate) as host:
        connect(host, certificate).close()
        wait_until(lambda: not host.vectors())
        before = resource.prlimit(host.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(host.pid, resource.RLIMIT_NOFILE, (3, before[1]))  # no more than its standard streams
        with socket.create_connection(("localhost", host.port)):
            assert any("takes no vector now: " in line for line in iter(host.line, ""))
        resource.prlimit(host.pid, resource.RLIMIT_NOFILE, before)
        connect(host, certificate).close()


def test_only_who_has_the_certificate_is_served(certificate: Path, tmp_path: Path) -> None:
    other = write_certificate(tmp_path / "other.pem")
    with Host(certificate) as host:
        socket.create_connection(("localhost", host.port)).close()  # a probe of Kubernetes: nothing is said
        with pytest.raises(EnvironmentFailed, match=r"has not the certificate of this program: .*CERTIFICATE_VERIFY"):
            connect(host, other)
        assert "refused" in host.line()
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts anyone, and has no certificate
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        with blind.wrap_socket(socket.create_connection(("localhost", host.port))), socket.socket():
            assert "refused" in host.line()
        with socket.create_connection(("localhost", host.port)) as plain:
            plain.sendall(b"\0" * 1000)
            assert "refused" in host.line()
        connect(host, certificate).close()


def test_a_workers_environments_are_in_the_servers_of_its_index(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec(id="CartPole-v1", num_envs=4, vectorization=Vectorization.ASYNC, servers=EnvServersSpec(replicas=2))
    here = rollfleet.make_env(spec)
    assert isinstance(here, ProcessVectorEnv)
    assert len(here.processes) == 2
    here.close()
    with Host(certificate) as even, Host(certificate) as odd:
        ports = {"6": even.port, "7": odd.port}
        monkeypatch.setattr(remote, "_address", lambda text: ("localhost", ports[text.removeprefix("servers-")]))
        monkeypatch.setenv(SERVERS, "servers-{}")
        monkeypatch.setenv(CERTIFICATE, str(certificate))
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
        there = rollfleet.make_env(spec)
        assert (len(even.vectors()), len(odd.vectors())) == (1, 1)
        assert there.reset(seed=0)[0].shape == (4, 4)
        there.close()


class Needy(gymnasium.Env[Any, Any]):
    """Needs what is on this host alone."""

    def __init__(self, pid: int) -> None:
        if os.getpid() != pid:
            raise RuntimeError("the camera is missing")
        self.observation_space = self.action_space = gymnasium.spaces.Box(-1, 1)


def test_a_server_that_cannot_make_the_environments_says_why(addresses: list[str], certificate: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=rf"(?s)server {addresses[0]}: Traceback.*the camera is missing"):
        rollfleet.make_vec(partial(Needy, os.getpid()), servers=addresses[:1], certificate=certificate)


def test_a_server_with_another_python_says_so(
    addresses: list[str], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "GREETING", b"rollfleet environments 1, Python 2.7\n")
    with pytest.raises(EnvironmentFailed, match=r"cannot be made there: .*the vector says '.* Python 2.7"):
        rollfleet.make_vec("CartPole-v1", servers=addresses[:1], certificate=certificate)


def test_a_server_that_cannot_be_reached_is_no_failure_of_its_environments(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.RemoteServers.__init__, "__defaults__", (0.5,))
    with socket.create_server(("localhost", 0)) as closed:
        port = closed.getsockname()[1]
    for variable, value in {SERVERS: f"localhost:{port}", CERTIFICATE: str(certificate), WORKER: "0"}.items():
        monkeypatch.setenv(variable, value)
    spec = EnvSpec(id="CartPole-v1", num_envs=1, vectorization=Vectorization.ASYNC, servers=EnvServersSpec(replicas=1))
    with pytest.raises(ConnectionFailed, match=rf"environment server localhost:{port} did not answer for 0.5 s"):
        rollfleet.make_env(spec)


def test_a_function_that_cannot_be_pickled_is_refused_before_it_connects(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.RemoteServers.__init__, "__defaults__", (0.5,))
    lock = threading.Lock()

    def make() -> gymnasium.Env[Any, Any]:
        with lock:
            return gymnasium.make("CartPole-v1")

    with socket.create_server(("localhost", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(EnvironmentInvalid, match=rf"localhost:{port}: .* cannot be pickled: .*lock.*; write one"):
        rollfleet.make_vec(make, servers=[f"localhost:{port}"], certificate=certificate)


@pytest.mark.parametrize("name", ["poles", "lab/poles"])
def test_a_learner_steps_the_environments_of_its_job(
    name: str, addresses: list[str], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {JOB: "lab/poles", URL: "nats://nats.lab", SERVERS: addresses[0], COUNT: "1", CERTIFICATE: certificate}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, str(value))
    envs = rollfleet.make_vec("CartPole-v1", num_envs=2, servers=name)
    assert envs.reset()[0].shape == (2, 4)
    envs.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": ["localhost"]}, "servers: 'localhost' is no address; write host:port, such as 'localhost:7700'"),
        ({"servers": [7700]}, "servers: 7700 is no address"),
        ({"servers": "localhost:7700"}, "servers: 'localhost:7700' is one address; write a list of them"),
        ({"servers": []}, "servers: must be at least 1, got 0"),
        ({"servers": ["a:1", "b:1"]}, "servers: 2 servers for 1 environments"),
        ({"workers": 1}, "workers: these are processes of this machine, or pods; remove it, or `servers`"),
        ({"certificate": None}, "certificate: is missing; .*set ROLLFLEET_ENV_CERTIFICATE"),
        ({"certificate": "none.pem"}, "certificate: none.pem cannot be used: .*No such file"),
        ({"certificate": __file__}, "certificate: .*test_remote.py cannot be used: .*private key"),
        ({"servers": None}, "certificate: is for `servers`"),
        ({"cluster": rollfleet.Cluster()}, "cluster: its pods are the servers; remove `servers`"),
    ],
)
def test_wrong_arguments_say_what_to_write(arguments: dict[str, Any], message: str, certificate: Path) -> None:
    given: dict[str, Any] = {"servers": ["localhost:7700"], "certificate": certificate} | arguments
    with pytest.raises(JobInvalid, match=message):
        rollfleet.make_vec("CartPole-v1", **given)
