"""Whatever the operator finds wrong with a job, the command line tells what to do, and so does docs/operations.md."""

import ast
import re
from pathlib import Path

from rollfleet.cli.diagnosis import ADVICE, UNSEEN

NO_TROUBLE = {"LearnerDone", "TotalFrames"}
OF_KUBERNETES = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}


def reasons(file: Path) -> set[str]:
    """All texts in CamelCase."""
    texts = (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"([A-Z][a-z]+){2,}", text)}


def test_there_is_advice_for_every_trouble_that_the_operator_tells(repository: Path) -> None:
    operator = repository / "operator/rollfleet_operator"
    told = set().union(*(reasons(operator / name) for name in ("problems.py", "apply.py", "verdict.py")))
    assert "QuotaExceeded" in told
    assert told - OF_KUBERNETES - NO_TROUBLE <= set(ADVICE)


def test_every_trouble_is_in_the_operations_page(repository: Path) -> None:
    page = (repository / "docs/operations.md").read_text()
    assert [reason for reason in ADVICE if f"`{reason}`" not in page and reason != UNSEEN] == []
