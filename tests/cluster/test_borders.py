"""What a job's worker reaches of another job's NATS server: by its name, by its address, with a password of its own."""

import pytest
from tests.api.job_data import job_data
from tests.cluster.lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CONNECT = """
import asyncio, os, ssl, sys
from nats.aio.client import Client
from rollfleet_api.address import Address

async def connect(url, name):
    here = Address.read(os.environ)
    user, password = here.credentials.read_text().strip().split(":")
    trust = ssl.create_default_context(cafile=str(here.ca))
    options = {"tls": trust, "tls_hostname": name, "connect_timeout": 5, "allow_reconnect": False}
    await Client().connect(url or here.url, user=user, password=password, max_reconnect_attempts=1, **options)

try:
    asyncio.run(connect(*sys.argv[1:]))
    print("connected")
except Exception as error:
    print(f"refused: {error!r}")
"""


def test_a_worker_reaches_no_other_jobs_server(lab: Lab) -> None:
    for name in ("own", "other"):
        lab.apply(job_data({"name": name}, policy={"random": {}}, workers=1))
    for name in ("own", "other"):
        lab.wait_until(name, lambda status: status.get("workers") == {"desired": 1, "ready": 1}, "a worker")
    (pod,) = (each["metadata"]["name"] for each in lab.pods("worker") if each["metadata"]["name"].startswith("own-"))
    address = {each["metadata"]["labels"]["rollfleet.dev/job"]: each["status"]["podIP"] for each in lab.pods("nats")}

    def connected(url: str, server: str) -> str:
        return lab.kubectl("exec", pod, "--", "python", "-c", CONNECT, url, f"{server}-nats.{lab.namespace}.svc")

    assert "connected" in connected("", "own")
    assert "connected" in connected(f"tls://{address['own']}:4222", "own"), "so that a refusal is the other server's"
    for host in (f"other-nats.{lab.namespace}.svc", address["other"]):
        assert "refused" in connected(f"tls://{host}:4222", "other")
        assert "refused" in connected(f"tls://{host}:4222", "own"), "it cannot pose as this job's server"
