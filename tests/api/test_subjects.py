"""A job's names on NATS: one reading each, shared with no other job, and each within one role's reach."""

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rollfleet_api.permissions import Role, permissions
from rollfleet_api.subjects import ALL, Ask, Subjects

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
# Few short names beside all others: "a-b" of "c" and "a" of "b-c" must come up.
jobs = st.builds(
    Subjects,
    namespace=st.sampled_from(["a", "b", "a-b", "b-a", "1", "default"]) | labels,
    job=st.sampled_from(["a", "b", "a-b", "b-a", "1", "default"]) | labels,
)
SUBJECTS = Subjects(namespace="default", job="cartpole")


def matches(pattern: str, subject: str) -> bool:
    """NATS's rule: `*` is one token, `>` at the end is one or more. A subject may hold wildcards, as a subscription."""
    ours, theirs = pattern.split("."), subject.split(".")
    if ours[-1] == ">":
        return len(theirs) >= len(ours) and matches(".".join(ours[:-1]), ".".join(theirs[: len(ours) - 1]))
    if len(ours) != len(theirs):
        return False
    return all(mine == other or (mine == "*" and other != ">") for mine, other in zip(ours, theirs, strict=True))


def used(subjects: Subjects) -> list[str]:
    """Every subject that carries a message of a job with three workers."""
    kinds = (subjects.worker, subjects.taken, subjects.chunk, subjects.offer, subjects.call, subjects.answer)
    of_workers = [kind(worker) for kind in kinds for worker in range(3)]
    weights = [kind(of) for kind in (subjects.weights_of, subjects.wants) for of in (ALL, "0", "evaluation-0")]
    return [subjects.spec, subjects.control, subjects.learner(0, 1), *map(subjects.ask, Ask), *weights, *of_workers]


@given(jobs)
def test_key_is_read_back(subjects: Subjects) -> None:
    assert Subjects.parse(subjects.key) == subjects


def test_jobs_of_one_name_share_only_the_job_itself() -> None:
    old, new = (set(used(replace(SUBJECTS, uid=uid))) for uid in ("old", "new"))
    assert old & new == {SUBJECTS.spec, SUBJECTS.ask(Ask.JOB)}
    with pytest.raises(ValueError, match=r"metadata\.uid 'a\.b': expected letters"):
        replace(SUBJECTS, uid="a.b")


def test_bare_name_is_a_job_of_the_default_namespace() -> None:
    assert Subjects.parse("cartpole") == SUBJECTS


@pytest.mark.parametrize("key", ["", "/a", "a/", "a/b/c", "a.b", "*", ">", "a/*", "a b", "A", "a_b", "-a", "a" * 64])
def test_name_that_would_reach_into_other_subjects_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a job"):
        Subjects.parse(key)


@given(jobs, jobs)
@example(Subjects(namespace="a-b", job="a"), Subjects(namespace="a", job="b-a"))
def test_no_subject_or_permission_of_one_job_reaches_another(one: Subjects, other: Subjects) -> None:
    assume(one != other)
    ours, theirs = [f"{one.prefix}.>"], used(other)
    for role in Role:
        allowed = permissions(one, role)
        ours += [*allowed.publish, *allowed.subscribe]
    assert not [(pattern, subject) for pattern in ours for subject in theirs if matches(pattern, subject)]


@given(jobs)
def test_each_subject_has_a_role_that_sends_it_and_one_that_hears_it(subjects: Subjects) -> None:
    roles = [permissions(subjects, role) for role in (Role.WORKER, Role.LEARNER)]
    for subject in used(subjects):
        sends = any(matches(pattern, subject) for role in roles for pattern in role.publish)
        hears = any(matches(pattern, subject) for role in roles for pattern in role.subscribe)
        assert (sends, hears) == (subject != subjects.spec, subject != subjects.ask(Ask.JOB) or hears)
