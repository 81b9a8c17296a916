"""docs/fields.md agrees with the models."""

import re
from pathlib import Path

from crds.fields_page import fields_page

PAGE = fields_page()


def test_the_page_is_current(repository: Path) -> None:
    assert (repository / "docs/fields.md").read_text() == PAGE, "run make crd"


def test_every_link_leads_to_a_section() -> None:
    sections = {re.sub(r"[`.\[\]]", "", line[3:]).lower() for line in PAGE.splitlines() if line.startswith("## ")}
    links = set(re.findall(r"\(#([^)]+)\)", PAGE))
    assert links
    assert links <= sections


def test_bounds_that_are_no_values_themselves_are_named() -> None:
    assert "| number, above 0 and below 1 |" in PAGE
