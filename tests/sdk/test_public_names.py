import importlib
import pkgutil
import warnings

import rollfleet
from rollfleet import errors


def test_the_public_names_are_these() -> None:
    assert sorted(rollfleet.__all__) == [
        "ActorCritic",
        "Checkpoint",
        "Cluster",
        "Collector",
        "CollectorJob",
        "Exploration",
        "Jobs",
        "LearningCurve",
        "Processes",
        "RandomPolicy",
        "Recording",
        "ReplayBuffer",
        "RollfleetError",
        "RunningNorm",
        "Stats",
        "connect",
        "evaluate",
        "exploring",
        "make_env",
        "make_policy",
        "make_vec",
        "record",
        "split_trajectories",
        "track",
    ]


def test_dir_has_the_public_names() -> None:
    assert set(rollfleet.__all__) <= set(dir(rollfleet))


def test_no_imported_module_hides_a_public_name() -> None:
    for module in pkgutil.walk_packages(rollfleet.__path__, "rollfleet."):
        if not module.name.endswith("__main__"):
            with warnings.catch_warnings():  # of TorchRL's own modules, if no test before has imported them
                warnings.simplefilter("ignore")
                importlib.import_module(module.name)
    for name in rollfleet.__all__:
        assert type(getattr(rollfleet, name)).__name__ != "module", f"a module hides rollfleet.{name}"


def test_every_error_is_drawn_in_one_tree() -> None:
    def below(error: type[BaseException]) -> list[type[BaseException]]:
        return [error, *(other for child in error.__subclasses__() for other in below(child))]

    for error in below(errors.RollfleetError):
        assert error.__module__ == "rollfleet.errors"
        assert f" {error.__name__} " in f" {(errors.__doc__ or '').replace(chr(10), ' ')} "
