"""Credentials files, as an operator would mint them: a real nats-server in JWT mode takes them and nothing else."""

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

import rollfleet
from rollfleet.errors import ConnectionFailed
from rollfleet.nats.embedded_server import find_nats_server
from rollfleet.nats.link import Link
from rollfleet.nats.streams import provision
from rollfleet.system.child_processes import spawn
from rollfleet_api.address import Address
from rollfleet_api.permissions import Role, permissions
from rollfleet_api.subjects import Subjects
from rollfleet_api.validation import parse_job

SUBJECTS = Subjects(namespace="default", job="test")
JOB = {
    "apiVersion": "rollfleet.dev/v1alpha1",
    "kind": "CollectorJob",
    "metadata": {"name": "test"},
    "spec": {"env": {"id": "CartPole-v1"}, "policy": {"random": {}}, "collect": {"framesPerBatch": 8}},
}


def _key(prefix: bytes) -> Any:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _token(issuer: Any, subject: Any, nats: dict[str, Any]) -> str:
    claims = {
        "iat": 1_700_000_000,
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": nats["type"],
        "nats": nats | {"version": 2},
    }
    claims["jti"] = hashlib.sha256(json.dumps(claims).encode()).hexdigest()
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(claims)}"
    return f"{signed}.{_part(issuer.sign(signed.encode()))}"


class Operator:
    """A nats-server that knows one operator and one account, and mints users of that account."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._runner = folder, asyncio.Runner()
        operator, self._account = _key(nkeys.PREFIX_BYTE_OPERATOR), _key(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1}
        storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "wildcards": True}
        account, system = self._account.public_key.decode(), _key(nkeys.PREFIX_BYTE_ACCOUNT)
        config = {
            "listen": "127.0.0.1:-1",
            "ports_file_dir": str(folder),
            "jetstream": {"store_dir": str(folder / "jetstream")},
            "operator": _token(operator, operator, {"type": "operator"}),
            "resolver": "MEMORY",
            "system_account": system.public_key.decode(),
            "resolver_preload": {
                account: _token(operator, self._account, {"type": "account", "limits": limits | storage}),
                system.public_key.decode(): _token(operator, system, {"type": "account", "limits": limits}),
            },
        }
        (folder / "nats.json").write_text(json.dumps(config))
        self._child = self._runner.run(
            spawn("nats-server", [str(find_nats_server()), "-c", str(folder / "nats.json")], environ=dict(os.environ))
        )
        self.url = self._runner.run(self._ready())

    async def _ready(self) -> str:
        ports = self._folder / f"nats-server_{self._child.pid}.ports"
        async with asyncio.timeout(10):
            while not ports.exists():
                assert not self._child.ended, self._child.last_output()
                await asyncio.sleep(0.01)
        return str(json.loads(ports.read_text())["nats"][0])

    def credentials(self, role: Role | None) -> Path:
        """A file for one user, with a role's permissions; None: all."""
        user = _key(nkeys.PREFIX_BYTE_USER)
        claims: dict[str, Any] = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        if role:
            allowed = permissions(SUBJECTS, role)
            claims |= {"pub": {"allow": allowed.publish}, "sub": {"allow": allowed.subscribe}}
        file = self._folder / f"{role or 'admin'}.creds"
        token = _token(self._account, user, claims)
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )
        return file

    def stop(self) -> None:
        self._runner.run(self._child.stop(2.0))
        self._runner.run(self._child.wait())
        self._runner.close()


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(tmp_path)
    link = Link(Address(url=operator.url, job=SUBJECTS.key, credentials=operator.credentials(None)), role=None)
    link.call(provision(link, parse_job(JOB)), timeout_s=10)
    link.close()
    yield operator
    operator.stop()


def test_a_credentials_file_is_read_from_an_argument(operator: Operator) -> None:
    with rollfleet.connect("test", address=operator.url, credentials=operator.credentials(Role.LEARNER)) as collector:
        assert collector.job == parse_job(JOB)


def test_a_credentials_file_is_read_from_the_environment(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFLEET_NATS_URL", operator.url)
    monkeypatch.setenv("ROLLFLEET_JOB", "default/test")
    monkeypatch.setenv("ROLLFLEET_NATS_CREDENTIALS", str(operator.credentials(Role.LEARNER)))
    with rollfleet.connect() as collector:
        assert collector.job.key == "default/test"


def test_a_credentials_file_is_read_from_the_files_of_a_pod(operator: Operator, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "url").write_text(operator.url + "\n")
    (mounted / "job").write_text("default/test\n")
    operator.credentials(Role.WORKER).rename(mounted / "user.creds")
    link = Link(Address.read({}, files=mounted), role=Role.WORKER)
    link.close()


def test_a_connection_without_credentials_is_refused(operator: Operator) -> None:
    with pytest.raises(ConnectionFailed, match=operator.url.removeprefix("nats://")):
        rollfleet.connect("test", address=operator.url, timeout_s=2)


def test_a_learners_credentials_give_no_access_as_a_worker(operator: Operator) -> None:
    link = Link(
        Address(url=operator.url, job=SUBJECTS.key, credentials=operator.credentials(Role.LEARNER)), role=Role.LEARNER
    )
    with pytest.raises(TimeoutError):
        link.call(link.client.request(SUBJECTS.batch_chunk(0, 0), b"", timeout=0.5))
    link.close()
