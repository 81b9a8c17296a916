"""The configuration that the chart gives NATS, on a real nats-server."""

import asyncio
import base64
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from nats.aio.client import Client
from tests.api.job_data import job_data
from tests.control.chart.helm import Helm, Rendered
from tests.control.wire.jwt_nats import start_nats_server

from rollfleet_api.metadata import MAX_LABEL_LENGTH, MAX_NAME_LENGTH
from rollfleet_api.permissions import Role
from rollfleet_api.quantity import parse_bytes
from rollfleet_api.validation import parse_job
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection, own_user
from rollfleet_operator.nats.reachable import refusal
from rollfleet_operator.nats.server_port import NatsOnServer
from rollfleet_operator.nats.settings import NatsSettings
from rollfleet_operator.nats.trust import new_keys, trust_configuration
from rollfleet_operator.nats_port import Endpoint

KEYS = new_keys(b"k" * 32)


class Nats:
    """A nats-server with the chart's own configuration; only paths and ports are this test's."""

    def __init__(self, rendered: Rendered, folder: Path) -> None:
        certificate = rendered.of("Secret")["rollfleet-nats-tls"]["data"]
        for name, encoded in certificate.items():
            (folder / name).write_bytes(base64.b64decode(encoded))
        (folder / "trust.conf").write_text(trust_configuration(KEYS, now_s=int(time.time())))
        text = rendered.of("ConfigMap")["rollfleet-nats"]["data"]["nats.conf"]
        text = text.replace("/etc/nats-certificate/", f"{folder}/").replace("/data/", f"{folder}/data/")
        text = text.replace("listen: 0.0.0.0:4222", f'listen: 127.0.0.1:-1\nports_file_dir: "{folder}"')
        (folder / "nats.conf").write_text(text.replace("http: 0.0.0.0:8222", "http: 127.0.0.1:-1"))
        self.process, urls = start_nats_server(folder / "nats.conf")
        self.port = urls["nats"][0].rpartition(":")[2]
        self.endpoint = Endpoint(url=f"tls://localhost:{self.port}", ca=(folder / "ca.crt").read_bytes())


@pytest.fixture
def nats_server(helm: Helm, tmp_path: Path) -> Iterator[Nats]:
    rendered = helm.render(nats__tls__names=["localhost"])
    server = Nats(rendered, tmp_path)
    yield server
    server.process.terminate()
    server.process.wait(10)


async def test_certificate_of_another_authority_or_name_is_refused(
    nats_server: Nats, helm: Helm, tmp_path: Path
) -> None:
    other = base64.b64decode(helm.render().of("Secret")["rollfleet-nats-tls"]["data"]["ca.crt"])
    address = f"tls://127.0.0.1:{nats_server.port}"
    for server in (replace(nats_server.endpoint, ca=other), replace(nats_server.endpoint, url=address)):
        with pytest.raises(NatsUnavailable, match=r"(?i)certificate"):
            await Connection(server, own_user(KEYS.system_account()), "test").client()


async def test_the_certificate_passes_the_strict_checks_of_newer_pythons(nats_server: Nats, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    reader, writer = await asyncio.open_connection("127.0.0.1", int(nats_server.port))
    assert (await reader.readline()).startswith(b"INFO")
    await writer.start_tls(context, server_hostname="localhost")
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def test_sixty_jobs_fit_into_the_defaults(nats_server: Nats, repository: Path) -> None:
    values = yaml.safe_load((repository / "charts/rollfleet/values.yaml").read_text())
    state_bytes = parse_bytes(values["nats"]["stateBytes"])
    nats = NatsOnServer(NatsSettings(endpoint=nats_server.endpoint, keys=KEYS, state_bytes=state_bytes))
    for index in range(60):
        await nats.provision(parse_job(job_data({"name": f"job-{index}", "uid": f"uid-{index}"})))
    await nats.close()


async def test_programs_of_a_job_with_the_longest_names_connect(nats_server: Nats, tmp_path: Path) -> None:
    metadata = {"name": "j" * MAX_NAME_LENGTH, "namespace": "n" * MAX_LABEL_LENGTH, "uid": "uid-1"}
    job = parse_job(job_data(metadata))
    nats = NatsOnServer(NatsSettings(endpoint=nats_server.endpoint, keys=KEYS))
    await nats.provision(job)
    for role in Role:
        (tmp_path / role).write_bytes(nats.credentials(job, role))
        tls = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        client = Client()
        await client.connect(
            nats_server.endpoint.url, tls=tls, user_credentials=str(tmp_path / role), allow_reconnect=False
        )
        await client.close()
    await nats.close()


def test_nats_takes_further_options(helm: Helm, tmp_path: Path) -> None:
    options = {"max_subscriptions": 1000, "lame_duck_duration": "40s", "connect_error_reports": 10}
    server = Nats(helm.render(nats__config=options), tmp_path)
    server.process.terminate()
    server.process.wait(10)
    assert "max_subscriptions: 1000\n" in (tmp_path / "nats.conf").read_text()


def test_client_without_credentials_is_refused_which_helm_test_expects(nats_server: Nats) -> None:
    assert "Authorization" in asyncio.run(refusal(nats_server.endpoint))
