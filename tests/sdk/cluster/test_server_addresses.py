"""The addresses of environment servers on a real API server; the test plays the operator."""

import base64
import threading
from typing import Any

import pytest
from tests.api.job_data import job_data
from tests.faults.proxy import Proxy
from tests.sdk.cluster.namespace import Namespace, condition

from rollfleet import Jobs
from rollfleet.cluster.server_addresses import ServerAddresses
from rollfleet.errors import JobEnded
from rollfleet_api.env_servers import CERTIFICATE_FILE
from rollfleet_api.kubernetes_names import credentials_secret
from rollfleet_api.permissions import Role

ENV: Any = {"id": "CartPole-v1", "numEnvs": 2, "vectorization": "Async", "servers": {"replicas": 2}}


def test_a_request_without_an_answer_does_not_end_the_wait(network: Proxy, namespace: Namespace) -> None:
    jobs = Jobs(namespace=namespace.name)
    jobs.submit(job_data(env=ENV))
    metadata = {"name": credentials_secret("cartpole", Role.LEARNER), "namespace": namespace.name}
    data = {CERTIFICATE_FILE.name: base64.b64encode(b"a certificate").decode()}
    jobs.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def cut() -> None:  # while a request waits for its answer
        network.cut()
        network.heal()
        namespace.report(conditions=[condition("Complete", "ServersUnused")])

    timer = threading.Timer(2.0, cut)

    def lose() -> None:
        if timer.ident is None:
            network.stall()
            timer.start()

    with pytest.raises(JobEnded, match=r"cartpole has no more environment servers: it is \w+ \(ServersUnused\)"):
        ServerAddresses(jobs, namespace.name, "cartpole", timeout_s=60, look=lose)
    timer.join()
