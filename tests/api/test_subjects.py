"""A job's names on NATS: one reading each, shared with no other job, and each within one role's reach."""

from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rollfleet_api.permissions import Role, inbox_prefix, permissions
from rollfleet_api.subjects import WEIGHT_SLOTS, Subjects

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
    kinds = (subjects.lease, subjects.worker, subjects.taken, subjects.chunk, subjects.offer)
    of_workers = [kind(worker) for kind in kinds for worker in range(3)]
    slots = [subjects.weights_of(of, version, chunk) for of in (None, 1) for version in (1, 2) for chunk in (0, 10)]
    learners = [subjects.spec, subjects.control, subjects.learner]
    calls = [subjects.call(0), subjects.answer(0)]
    return [*learners, *slots, *calls, *of_workers]


@given(jobs)
def test_key_is_read_back(subjects: Subjects) -> None:
    assert Subjects.parse(subjects.key) == subjects


def test_bare_name_is_a_job_of_the_default_namespace() -> None:
    assert Subjects.parse("cartpole") == SUBJECTS


@pytest.mark.parametrize("key", ["", "/a", "a/", "a/b/c", "a.b", "*", ">", "a/*", "a b", "A", "a_b", "-a", "a" * 64])
def test_name_that_would_reach_into_other_subjects_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a job"):
        Subjects.parse(key)


@given(jobs, jobs)
@example(Subjects(namespace="a-b", job="a"), Subjects(namespace="a", job="b-a"))
def test_no_subject_stream_inbox_or_permission_of_one_job_reaches_another(one: Subjects, other: Subjects) -> None:
    assume(one != other)
    ours, theirs = [*one.state_subjects, one.batches, f"{one.prefix}.>"], used(other)
    for role in Role:
        allowed = permissions(one, role)
        ours += [f"{inbox_prefix(one, role)}.>", *allowed.publish, *allowed.subscribe]
        requests = [subject for subject in permissions(other, role).publish if subject.startswith("$JS.")]
        theirs += [f"{inbox_prefix(other, role)}.x", *requests]
    assert not [(pattern, subject) for pattern in ours for subject in theirs if matches(pattern, subject)]
    assert one.state_stream != other.state_stream


@given(jobs)
def test_the_stream_keeps_every_subject_but_those_of_batches_and_hints(subjects: Subjects) -> None:
    for subject in used(subjects):
        kept = any(matches(pattern, subject) for pattern in subjects.state_subjects)
        assert kept == (subject.split(".")[3] not in ("batches", "taken", "calls", "answers"))


def test_a_worker_gets_no_versions_for_another() -> None:
    for of in (None, 1, 2):
        heard = [each for each in (None, 1, 2) if matches(SUBJECTS.weights_of(of), SUBJECTS.weights_of(each, 7, 0))]
        assert heard == [of]


def test_version_does_not_overwrite_the_previous_one() -> None:
    chunks = [SUBJECTS.weights_of(None, version, 0) for version in range(1, 2 + WEIGHT_SLOTS)]
    assert len(set(chunks)) == WEIGHT_SLOTS
    assert all(one != following for one, following in pairwise(chunks))
