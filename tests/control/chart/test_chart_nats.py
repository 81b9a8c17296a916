"""The options that the chart gives jobs' NATS servers, on a real nats-server."""

import base64
import json
import socket
from pathlib import Path

from tests.control.chart.helm import Helm
from tests.control.wire.job_nats import NatsProcess, Site

from rollfleet_operator import nats_server
from rollfleet_operator.installation_key import KEY_BYTES, InstallationKey
from rollfleet_operator.nats_access import NatsAccess


def test_a_jobs_server_takes_the_options_of_the_chart(helm: Helm, tmp_path: Path) -> None:
    options = {"max_payload": 8388608, "max_subscriptions": 1000, "lame_duck_duration": "40s"}
    access = NatsAccess(key=InstallationKey(bytes(KEY_BYTES)), tls=False)
    files = nats_server.secret(Site.job(), helm.render(nats__config=options).settings(), access)["data"]
    server = NatsProcess(tmp_path / "server", json.loads(base64.b64decode(files["nats.json"])))
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
        hello = client.makefile("rb").readline()
    server.stop()
    assert json.loads(hello.removeprefix(b"INFO"))["max_payload"] == 8388608
