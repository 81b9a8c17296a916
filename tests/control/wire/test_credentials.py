"""When the operator makes other credentials, and which keys they come from. No server, no clock."""

from pathlib import Path

import pytest
from tests.control.wire.jwt_nats import Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role, permissions
from rollfleet_api.streams import subjects_of
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.settings import KEYS, NatsSettings
from rollfleet_operator.nats.tokens import Kind, Signer, read_credentials, read_token
from rollfleet_operator.nats.trust import new_keys, secret_files, trust_configuration
from rollfleet_operator.nats.users import issued_at, role_credentials
from rollfleet_operator.settings import SettingsInvalid

KEYS_A, KEYS_B = new_keys(b"a" * 32), new_keys(b"b" * 32)
NOW_S = 1_800_000_000
HOUR_S = 3600
LIFE_S = 24 * HOUR_S


job = Site.job


def minted(job: CollectorJob, *, now_s: int = NOW_S, keys: Keys = KEYS_A, role: Role = Role.WORKER) -> bytes:
    issued_s = issued_at(job, LIFE_S, now_s)
    return role_credentials(job, role, keys, issued_s=issued_s, life_s=LIFE_S)


def test_credentials_are_renewed_after_half_of_their_validity() -> None:
    each_hour = [read_token(read_credentials(minted(job(), now_s=NOW_S + hour * HOUR_S))[0]) for hour in range(48)]
    issued = [token.issued_s for token in each_hour]
    assert [issued.count(issued_s) for issued_s in sorted(set(issued))[1:-1]] == [12, 12, 12]
    for hour, token in enumerate(each_hour):
        assert token.expires_s == token.issued_s + 24 * HOUR_S
        assert token.expires_s >= NOW_S + (hour + 12) * HOUR_S, "valid for as long as pods need"
    assert len({token.subject for token in each_hour}) == len(set(issued))


def test_jobs_are_renewed_at_different_times() -> None:
    assert len({issued_at(job(uid=f"uid-{number}"), LIFE_S, NOW_S) for number in range(100)}) > 90


@pytest.mark.parametrize(
    "other",
    [
        minted(job("b")),
        role_credentials(
            job(uid="uid-2"), Role.WORKER, KEYS_A, issued_s=issued_at(job(), LIFE_S, NOW_S), life_s=LIFE_S
        ),
        minted(job(), role=Role.LEARNER),
        minted(job(), keys=KEYS_B),
        minted(job(), now_s=NOW_S + 12 * HOUR_S),
    ],
    ids=["job", "uid", "role", "keys", "time"],
)
def test_others_have_other_credentials(other: bytes) -> None:
    assert read_credentials(minted(job()))[1].public != read_credentials(other)[1].public


def test_a_restart_or_a_change_of_the_spec_changes_no_credentials() -> None:
    again = Keys(Signer.from_seed(KEYS_A.operator.seed))
    assert minted(job(workers=9), keys=again) == minted(job())


@pytest.mark.parametrize("role", Role)
def test_a_user_may_do_what_its_role_may_and_is_of_one_account(role: Role) -> None:
    token, _ = read_credentials(minted(job(), role=role))
    claims = read_token(token).nats
    allowed = permissions(subjects_of(job()), role)
    assert claims["pub"] == {"allow": allowed.publish}
    assert claims["sub"] == {"allow": allowed.subscribe}
    assert claims["issuer_account"] == KEYS_A.account(subjects_of(job())).public


def test_each_job_has_an_account_of_its_own() -> None:
    def accounts(keys: Keys) -> set[str]:
        return {keys.account(subjects_of(each)).public for each in (job("a"), job("b"))}

    assert len(accounts(KEYS_A)) == 2
    assert not accounts(KEYS_A) & accounts(KEYS_B)
    assert accounts(KEYS_A) == accounts(Keys(Signer.from_seed(KEYS_A.operator.seed))), "after a restart"


def test_jobs_with_similar_names_have_different_keys() -> None:
    # Were the parts not kept apart, a job of one namespace could have the account of a job of another.
    def account(namespace: str, name: str) -> str:
        return KEYS_A.account(Subjects(namespace=namespace, job=name)).public

    assert account("ab", "c") != account("a", "bc")


def test_configuration_of_the_server_contains_no_seed() -> None:
    files = secret_files(KEYS_A, now_s=NOW_S)
    assert set(files) == {"operator.seed", "trust.conf"}
    assert Keys(Signer.from_seed(files["operator.seed"])) == KEYS_A
    assert not {"SO", "SA"} & {word[:2] for word in files["trust.conf"].replace('"', " ").split()}
    assert trust_configuration(KEYS_A, now_s=NOW_S) == files["trust.conf"]


def test_error_of_settings_names_the_missing_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="ROLLFLEET_NATS_URL"):
        NatsSettings.read({})
    variables = {"ROLLFLEET_NATS_URL": "nats://nats:4222", KEYS: str(tmp_path)}
    with pytest.raises(SettingsInvalid, match=r"operator\.seed"):
        NatsSettings.read(variables)
    (tmp_path / "operator.seed").write_text("not a seed\n")
    with pytest.raises(SettingsInvalid, match="not the seed"):
        NatsSettings.read(variables)
    (tmp_path / "operator.seed").write_text(Signer.of(Kind.ACCOUNT, b"a" * 32).seed)
    with pytest.raises(SettingsInvalid, match="begins with `SO`"):
        NatsSettings.read(variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROLLFLEET_NATS_CREDENTIALS_SECONDS", "abc"),
        ("ROLLFLEET_NATS_CREDENTIALS_SECONDS", "0"),
        ("ROLLFLEET_NATS_STATE_BYTES", "1GB"),
        ("ROLLFLEET_NATS_STATE_BYTES", "0"),
    ],
)
def test_error_of_settings_names_the_invalid_one(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "operator.seed").write_text(KEYS_A.operator.seed)
    with pytest.raises(SettingsInvalid, match=f"{name}='{value}'"):
        NatsSettings.read({"ROLLFLEET_NATS_URL": "nats://nats:4222", KEYS: str(tmp_path), name: value})


def test_settings_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "operator.seed").write_text(KEYS_A.operator.seed + "\n")
    (tmp_path / "ca.crt").write_text("certificate")
    variables = {
        "ROLLFLEET_NATS_URL": "tls://nats:4222",
        "ROLLFLEET_NATS_CA": str(tmp_path / "ca.crt"),
        "ROLLFLEET_NATS_STATE_BYTES": "2Gi",
        "ROLLFLEET_NATS_PUBLIC_URL": "tls://nats.example:4222",
        KEYS: str(tmp_path),
    }
    settings = NatsSettings.read(variables)
    assert settings.keys == KEYS_A
    assert settings.endpoint.ca == b"certificate"
    assert settings.endpoint.public_url == "tls://nats.example:4222"
    assert settings.state_bytes == 2 << 30
    assert settings.system is None
