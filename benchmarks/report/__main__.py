"""Tables and pictures of the results of `benchmarks/peers.py --json`: `python -P benchmarks/report results.json docs`.

They replace the text between the marks `<!-- name -->` and `<!-- end -->` of benchmarks/RESULTS.md, and the pictures in
docs/images. So no figure there is typed by hand.
"""

import argparse
import json
from pathlib import Path

from curves import curve_tables, draw
from documents import fill
from tables import bars, case_tables, machine, target_table


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
    fill(
        options.docs.parent / "benchmarks" / "RESULTS.md",
        {
            "machine": machine(results),
            "targets": target_table(cases),
            "cases": case_tables(cases),
            "curves": curve_tables(cases),
        },
    )


if __name__ == "__main__":
    main()
