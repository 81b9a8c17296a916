"""The table of edits in docs/operations.md agrees with the models."""

import re
from pathlib import Path

from rollfleet_api.fields import Model
from rollfleet_api.job import CollectorJobSpec, CollectSpec, FailureSpec, WeightsSpec

PARTS: dict[str, type[Model]] = {"": CollectorJobSpec, "collect.": CollectSpec, "weights.": WeightsSpec}


def listed(names: str) -> set[str]:
    found = ((path, part.model_fields[name]) for path, part in PARTS.items() for name in getattr(part, names))
    return {f"{path}{field.alias}" for path, field in found}


def test_it_names_what_keeps_the_workers_and_what_restarts_the_learner(repository: Path) -> None:
    page = (repository / "docs/operations.md").read_text()
    table = page.partition("## Edit a running job\n")[2].partition("\n## ")[0]
    keep, restart = set[str](), set[str]()
    for edited, workers, learner in re.findall(r"^\| (.*`.*) \| (.+) \| (.+) \|$", table, re.MULTILINE):
        named = re.findall(r"`([\w.]+)`", re.sub(r"\(.*\)", "", edited))
        keep |= {*named} if workers == "go on" else set()
        restart |= {*named} if learner.startswith("a new pod") else set()
    of_failure = FailureSpec.model_fields.items()
    excepted = {f"{field.alias}" for name, field in of_failure if name not in FailureSpec.KEEPS_WORKERS}
    assert keep == listed("KEEPS_WORKERS") - {"suspend"} | {"failure", *excepted}
    assert restart == listed("RESTARTS_LEARNER") - {"mode"} | {"image"}
