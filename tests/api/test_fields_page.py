"""docs/fields.md agrees with the models."""

import re
from pathlib import Path

from rollfleet_api import fields_page

PAGE = fields_page.fields_page()


def test_the_page_is_current(repository: Path) -> None:
    assert (repository / "docs/fields.md").read_text() == PAGE, (
        "run python -P -m rollfleet_api.fields_page docs/fields.md"
    )


def test_fields_show_their_values_defaults_and_rules() -> None:
    rows = {cells[1]: cells for line in PAGE.splitlines() if len(cells := re.split(r" ?(?<!\\)\| ?", line)) == 6}
    assert rows["`numEnvs`"][3] == "whole number, from 1 to 65536"
    assert rows["`threshold`"][3:5] == ["number, above 0 to 1", "`1.0`"]
    assert rows["`mode`"][3] == "`Sync`, `Async`"
    assert rows["`framesPerBatch`"][4] == "required"
    assert rows["`requests`"][3] == "mapping to quantity"
    assert "\n- `collect.framesPerBatch`: must be a multiple of `env.numEnvs`.\n" in PAGE
    assert "e.g. `my-code`" in rows["`configMap`"][2]


def test_every_link_leads_to_a_section() -> None:
    sections = {re.sub(r"[`.\[\]]", "", line[3:]).lower() for line in PAGE.splitlines() if line.startswith("## ")}
    links = set(re.findall(r"\(#([^)]+)\)", PAGE))
    assert links
    assert links <= sections
