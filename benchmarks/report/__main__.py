"""Tables and pictures of the results of `benchmarks/peers.py --json`: `python -P benchmarks/report results.json docs`.

They replace the text between the marks `<!-- name -->` and `<!-- end -->` of some pages, and the pictures in
docs/images. So no figure there is typed by hand.
"""

import argparse
import json
from pathlib import Path

from curves import curve_tables, draw
from documents import fill
from pages import figures, scaling, two_workers, where_to_act
from tables import bars, case_tables, machine, target_table

PAGES = (
    *("README.md", "benchmarks/RESULTS.md"),
    *(f"docs/{page}.md" for page in ("index", "benchmarks", "scaling", "make-vec")),
)


def main() -> None:
    """Write the tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("docs", type=Path)
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    cases, images = results["cases"], options.docs / "images"
    bars(cases, images / "bench-peers.svg")
    draw(cases, images / "bench-scaling.svg")
    texts = {
        "machine": machine(results),
        "targets": target_table(cases),
        "cases": case_tables(cases),
        "curves": curve_tables(cases),
        "figures": figures(cases),
        "two workers": two_workers(cases),
        "scaling": scaling(cases),
        "where to act": where_to_act(cases),
    }
    for page in PAGES:
        fill(options.docs.parent / page, texts)


if __name__ == "__main__":
    main()
