"""Two installations with one signing key on one NATS: neither touches the jobs of the other."""

import pytest
from tests.control.wire.jwt_nats import Site

from rollfleet_api.messages import Control, LearnerPhase, pack
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.apply import problem_of
from rollfleet_operator.errors import OwnedElsewhere
from rollfleet_operator.nats_port import JobKey

KEY = JobKey("default", "a")
CONTROL = Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=3)


async def test_jobs_of_another_installation_are_no_orphans_and_are_left_alone(site: Site) -> None:
    production, development = (site.nats_with(installation=name) for name in ("production", "development"))
    job = site.job()
    await production.provision(job)
    await site.speak(job, Role.LEARNER, {subjects_of(job).control: CONTROL})
    assert await production.provisioned() == {KEY}
    assert await development.provisioned() == set()
    await development.deprovision(KEY)
    assert await site.stored(job, subjects_of(job).control) == pack(CONTROL)


@pytest.mark.parametrize("uid", ["uid-1", "uid-2"], ids=["a restored cluster", "another cluster"])
async def test_job_of_a_name_that_another_installation_has_is_refused_and_learns_nothing(site: Site, uid: str) -> None:
    production, development = (site.nats_with(installation=name) for name in ("production", "development"))
    theirs, ours = site.job(uid="uid-1"), site.job(uid=uid)
    await production.provision(theirs)
    await site.speak(theirs, Role.LEARNER, {subjects_of(theirs).control: CONTROL})
    refusal = r"'production' runs a job default/a .* is 'development'"
    for attempt in (development.provision(ours), development.heartbeats(ours)):
        with pytest.raises(OwnedElsewhere, match=refusal) as refused:
            await attempt
        assert problem_of(refused.value).reason == "OwnedElsewhere"
    assert (await production.heartbeats(theirs)).control == CONTROL
    await production.deprovision(KEY)
    await development.provision(ours)


async def test_accounts_without_an_id_are_adopted_by_their_job_and_never_orphans(site: Site) -> None:
    job, other = site.job(), site.job("other")
    for each in (job, other):
        await site.nats.provision(each)
    await site.speak(job, Role.LEARNER, {subjects_of(job).control: CONTROL})
    production = site.nats_with(installation="production")
    assert await production.provisioned() == set()
    assert (await production.heartbeats(job)).control == CONTROL
    async with site.guest(job, Role.WORKER) as worker:
        await production.provision(job)
        await worker.flush()
        assert worker.client.is_connected
    assert await production.provisioned() == {KEY}
    assert await site.stored(job, subjects_of(job).control) == pack(CONTROL)
