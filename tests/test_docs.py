"""Every command that stands in the docs exists, with those options; every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from camp.cli import camp, camp_data

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "demo.sh",
]
PROGRAMS = {"camp": camp, "camp-data": camp_data}
COMMAND = re.compile(r"^\s*(?:step |[A-Z_]+=\S+ )*((?:camp|camp-data) .*)$")


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        blocks = [text] if page.suffix == ".sh" else re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)
        matches = (COMMAND.match(line) for line in "\n".join(blocks).splitlines())
        found += [(page.name, re.sub(r"\s#.*$", "", match.group(1))) for match in matches if match]
    return found


def test_the_pages_have_commands() -> None:
    assert len(commands()) > 10


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_parse(page: str, line: str) -> None:
    words = shlex.split(line.split("|")[0].split(">")[0].split("&&")[0])
    if "..." in words or "…" in line:
        words = [word for word in words if word not in ("...", "…")]
    group = PROGRAMS[words[0]]
    with group.make_context(words[0], words[1:2]) as context:
        name, command, arguments = group.resolve_command(context, words[1:])
        assert command is not None, name
        command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize(
    "page", [page for page in [*PAGES, ROOT / "ARCHITECTURE.md"] if page.suffix == ".md"]
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_lists_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    missing = [f"camp-data {name}" for name in camp_data.lazy if f"{name}" not in text]
    missing += [f"camp {name}" for name in camp.lazy if f"camp {name}" not in text]
    assert missing == []
