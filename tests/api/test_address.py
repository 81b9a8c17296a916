"""The address of a job: from arguments, environment variables and mounted files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollfleet_api.address import (
    CA,
    CREDENTIALS,
    JOB,
    JOB_COMPLETION_INDEX,
    URL,
    WORKER,
    Address,
    EnvironmentIncomplete,
    worker_index,
)

VARIABLES = {URL: "nats://variable:1", JOB: "variables/job", CREDENTIALS: "/variable.creds", CA: "/variable.crt"}
texts = st.text("abc:/@.,-", min_size=1, max_size=30)


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    (tmp_path / "url").write_text("nats://file:1\n")
    (tmp_path / "job").write_text("files/job\n")
    (tmp_path / "user.creds").write_text("secret")
    (tmp_path / "ca.crt").write_text("certificate")
    return tmp_path


def test_files_are_read_and_variables_win_over_them(mounted: Path) -> None:
    secrets: dict[str, Any] = {"credentials": mounted / "user.creds", "ca": mounted / "ca.crt"}
    assert Address.read({}, files=mounted) == Address(url="nats://file:1", job="files/job", **secrets)
    secrets = {"credentials": Path("/variable.creds"), "ca": Path("/variable.crt")}
    assert Address.read(VARIABLES, files=mounted) == Address(url="nats://variable:1", job="variables/job", **secrets)


def test_a_name_without_a_namespace_gets_that_of_the_environment(mounted: Path, tmp_path: Path) -> None:
    (mounted / "job").write_text("team-a/cartpole\n")
    assert Address.read({}, files=mounted, job="acro").job == "team-a/acro"
    assert Address.read({JOB: "acro"}, files=mounted).job == "team-a/acro"
    assert Address.read({JOB: "team-b/other"}, files=mounted, job="acro").job == "team-b/acro"
    assert Address.read({JOB: "other"}, files=mounted, job="acro").job == "team-a/acro"
    assert Address.read({}, files=mounted, job="team-c/acro").job == "team-c/acro"
    assert Address.read({}, files=tmp_path / "none", url="nats://a", job="acro").job == "acro"  # that is default/acro


def test_arguments_win_over_variables_and_files(mounted: Path) -> None:
    arguments = {"url": "nats://argument:1", "job": "arguments/job", "credentials": "argument.creds"}
    address = Address.read(VARIABLES, files=mounted, **arguments)
    assert (address.url, address.job) == ("nats://argument:1", "arguments/job")
    assert address.credentials == Path("argument.creds")


@pytest.mark.parametrize(("variable", "field"), [(URL, "url"), (JOB, "job"), (CREDENTIALS, "credentials"), (CA, "ca")])
def test_each_value_is_read_by_itself_and_an_empty_variable_is_ignored(
    mounted: Path, variable: str, field: str
) -> None:
    of_files, of_variables = Address.read({}, files=mounted), Address.read(VARIABLES, files=mounted)
    mixed = replace(of_variables, **{field: getattr(of_files, field)})
    assert Address.read(VARIABLES | {variable: ""}, files=mounted) == mixed


@pytest.mark.parametrize(("missing", "file"), [(URL, "url"), (JOB, "job")])
def test_missing_value_is_named_with_its_sources(tmp_path: Path, missing: str, file: str) -> None:
    variables = {name: value for name, value in VARIABLES.items() if name != missing}
    (tmp_path / file).write_text("\n")  # an empty file says nothing either
    with pytest.raises(EnvironmentIncomplete) as error:
        Address.read(variables, files=tmp_path)
    assert missing in str(error.value)
    assert str(tmp_path / file) in str(error.value)


@given(
    st.builds(Address, url=texts, job=texts, credentials=st.none() | texts.map(Path), ca=st.none() | texts.map(Path))
)
def test_variables_are_read_back(address: Address) -> None:
    nothing_there = Path("/nowhere")
    assert Address.read(address.variables(), files=nothing_there) == address
    assert all(address.variables().values())


def test_worker_index_comes_from_rollfleet_or_kubernetes() -> None:
    assert worker_index({WORKER: "3"}) == 3
    assert worker_index({JOB_COMPLETION_INDEX: "4"}) == 4
    assert worker_index({WORKER: "0", JOB_COMPLETION_INDEX: "4"}) == 0
    assert worker_index({WORKER: "", JOB_COMPLETION_INDEX: "4"}) == 4


@pytest.mark.parametrize("index", ["-1", "1.5", "one", " ", "0x1", "²"])
def test_index_that_is_no_whole_number_is_refused(index: str) -> None:
    with pytest.raises(EnvironmentIncomplete, match="expected a whole number from 0"):
        worker_index({WORKER: index})
