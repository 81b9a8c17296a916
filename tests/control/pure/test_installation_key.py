"""What is derived from an installation's key: the same each time, and of no use to another job."""

import ssl
import subprocess
from pathlib import Path

from tests.control.pure.scene import a_job

from rollfleet_api.job import CollectorJob
from rollfleet_api.nats_server import USERS
from rollfleet_operator import names
from rollfleet_operator.installation_key import KEY_BYTES, InstallationKey

KEY = InstallationKey(bytes(range(KEY_BYTES)))
HOST = "cartpole-nats.lab.svc"


def changed(job: CollectorJob, **metadata: object) -> CollectorJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update=metadata)})


def test_each_user_of_each_job_has_a_password_of_its_own_and_any_operator_finds_the_same() -> None:
    job = a_job()
    later, renewed = changed(job, uid="another"), changed(job, annotations={names.ROTATE: "2027-01-31"})
    found = {
        key.password(each, user)
        for key in (KEY, InstallationKey(bytes(KEY_BYTES)))
        for each in (job, later, renewed)
        for user in USERS
    }
    assert len(found) == 2 * 3 * len(USERS)
    assert InstallationKey(KEY.secret).password(a_job(generation=7, workers=9), USERS[0]) == KEY.password(job, USERS[0])
    assert min(map(len, found)) == 43


def test_certificates_are_the_same_each_time_and_of_another_key_for_another_job() -> None:
    job = a_job()
    assert KEY.certificate(job, HOST) == InstallationKey(KEY.secret).certificate(job, HOST)
    others = [KEY.certificate(changed(job, uid="another"), HOST), KEY.certificate(job, "other-nats.lab.svc")]
    assert len({KEY.certificate(job, HOST), *others}) == 3


def test_openssl_trusts_the_certificate_for_its_host_and_job_alone_and_for_ever(tmp_path: Path) -> None:
    certificate, key = KEY.certificate(a_job(), HOST, "192.0.2.1")
    for name, content in (("ca", KEY.authority(a_job())), ("certificate", certificate), ("key", key)):
        (tmp_path / name).write_bytes(content)

    def verifies(host: str, at_s: int = 1_800_000_000, authority: str = "ca", option: str = "-verify_hostname") -> bool:
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-purpose",
            "sslserver",
            option,
            host,
            "-attime",
            str(at_s),
        ]
        done = subprocess.run(
            [*command, "-CAfile", authority, "certificate"], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode == 0

    rotated = changed(a_job(), annotations={names.ROTATE: "2027-01-31"})
    assert KEY.authority(rotated) == KEY.authority(a_job()), "clients that run read it once"
    (tmp_path / "other").write_bytes(KEY.authority(changed(a_job(), uid="of the job at that host")))
    assert verifies(HOST)
    assert verifies(HOST, at_s=20_000_000_000), "in six hundred years, too"
    assert not verifies("other-nats.lab.svc")
    assert verifies("192.0.2.1", option="-verify_ip")
    assert not verifies(HOST, authority="other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
