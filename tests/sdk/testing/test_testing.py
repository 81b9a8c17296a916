"""What `rollfleet.testing` promises: its names, and an environment that counts."""

import rollfleet.testing
from rollfleet.testing import BACKGROUND_CHECKS, TRANSPORT_CHECKS, CountingEnv
from rollfleet.testing import transport_checks as suite
from rollfleet.testing.transport_checks import Check


def test_public_names_are_these() -> None:
    assert sorted(rollfleet.testing.__all__) == [
        "BACKGROUND_CHECKS",
        "CountingEnv",
        "MakeRig",
        "Marked",
        "Rig",
        "TRANSPORT_CHECKS",
        "marked_workload",
        "small_job",
    ]
    assert all(hasattr(rollfleet.testing, name) for name in rollfleet.testing.__all__)


def test_suite_runs_every_check_that_it_defines() -> None:
    defined: set[Check] = {
        check
        for name, check in vars(suite).items()
        if not name.startswith("_") and getattr(check, "__annotations__", {}).keys() == {"make", "return"}
    }
    assert {*TRANSPORT_CHECKS, *BACKGROUND_CHECKS} == defined
    assert len(TRANSPORT_CHECKS) + len(BACKGROUND_CHECKS) == len(defined)


def test_environment_shows_its_steps_over_all_episodes() -> None:
    env = CountingEnv(episode_frames=2)
    env.reset()
    steps = [env.step(0) for _ in range(2)]
    observation, _ = env.reset()
    assert [float(step[0][0]) for step in steps] == [1.0, 2.0]
    assert [step[2] for step in steps] == [False, True]
    assert float(observation[0]) == 2.0
