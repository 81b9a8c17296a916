"""The command line and docs/troubleshooting.md have advice for every problem that the operator reports."""

import ast
import re
from pathlib import Path

from rollfleet_api.diagnosis import ADVICE, UNSEEN
from rollfleet_api.kinds import KINDS
from rollfleet_api.permissions import Role

NO_TROUBLE = {"LearnerDone", "LearnerExited", "ServersUnused", "TotalFrames"}
OF_KUBERNETES = {
    "CrashLoopBackOff",
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
    """All texts in CamelCase but the kinds of objects."""
    texts = (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"([A-Z][a-z]+){2,}", text)} - {*KINDS}


def test_every_problem_of_the_operator_has_advice(repository: Path) -> None:
    files = [repository / f"sdk/rollfleet_api/state/{name}.py" for name in ("problems", "status", "verdict")]
    reported = set().union(*map(reasons, [*files, repository / "operator/rollfleet_operator/apply.py"]))
    assert "QuotaExceeded" in reported
    reported |= {f"{role.word}Crashed" for role in Role}
    assert reported - OF_KUBERNETES - NO_TROUBLE <= set(ADVICE)


def test_every_problem_is_in_the_page_on_troubleshooting(repository: Path) -> None:
    page = (repository / "docs/troubleshooting.md").read_text()
    assert [reason for reason in ADVICE if f"`{reason}`" not in page and reason != UNSEEN] == []
