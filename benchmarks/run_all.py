"""Every benchmark -> one page, benchmarks/RESULTS.md, with the command, the date and the hardware."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"gemm", "harness", "loader_peers", "published", "ram_gather", "run_all"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the long runs instead of --quick ones")
    parser.add_argument("names", nargs="*", help="only these benchmarks")
    options = parser.parse_args()
    names = options.names or sorted(
        path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_BENCHMARKS
    )
    documents, failed = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            print(f"== {name}", flush=True)
            out = Path(scratch, f"{name}.json")
            command = [sys.executable, str(FOLDER / f"{name}.py"), "--json", str(out)]
            command += [] if options.full else ["--quick"]
            if subprocess.run(command).returncode:
                failed.append(name)
            else:
                documents.append(json.loads(out.read_text()))
    (FOLDER / "RESULTS.md").write_text(page(documents, full=options.full))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def page(documents: list[dict[str, Any]], *, full: bool) -> str:
    """The benchmarks' documents -> Markdown."""
    lines = [
        "# Benchmarks",
        "",
        "Ours, the peers and the limit in one run each; ratios are 'times better than',",
    ]
    lines += ["or the share of a limit.", ""]
    for document in documents:
        machine = ", ".join(f"{key} {value}" for key, value in document["machine"].items() if value)
        flag = "" if full else " --quick"
        lines += [f"## {document['benchmark']}", ""]
        lines += [f"`python benchmarks/{document['benchmark']}.py{flag}` on {machine}", ""]
        lines += ["| what | value | unit |", "|---|---:|---|"]
        lines += [f"| {row['name']} | {row['value']:,.4g} | {row['unit']} |" for row in document["rows"]]
        if document["ratios"]:
            lines += ["", "| ratio | value |", "|---|---:|"]
            lines += [f"| `{name}` | {value:.2f} |" for name, value in document["ratios"].items()]
        lines += ["", *[f"{note}  " for note in document["notes"]], ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
