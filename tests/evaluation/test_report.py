"""A run's page: what it holds, and that a browser shows it and opens an explanation."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from camp.errors import InputError
from camp.evaluation.report import write_report
from camp.evaluation.report_gallery import choose_queries, worst_queries
from camp.evaluation.report_plots import Series, bar_chart, line_chart, nice_ticks
from camp.evaluation.run_folder import Run

CPU = torch.device("cpu")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

JOURNAL: list[dict[str, Any]] = [
    *({"kind": "train", "step": step, "loss": 100 / (1 + step), "lr": 1e-3} for step in range(0, 50, 10)),
    *(
        {
            "kind": "validation",
            "step": step,
            **{
                direction: {"r@1": step / 10, "r@5": step / 5, "r@10": step / 2}
                for direction in ("caption_retrieval", "image_retrieval")
            },
        }
        for step in (20, 40)
    ),
]


@pytest.fixture(scope="module")
def page(
    base_run: Run, camp_run: Run, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[str], Path]:
    path, notes = write_report(
        camp_run,
        out=tmp_path_factory.mktemp("report"),
        journal=JOURNAL,
        candidates=base_run,
        device=CPU,
    )
    return path.read_text(encoding="utf-8"), notes, path


class Page(HTMLParser):
    """Open elements, ids and addresses of a page; an element closed out of turn fails."""

    VOID = ("meta", "link", "img", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.pairs: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]
        self.pairs += [value for name, value in attrs if name in ("data-pair", "data-explain") and value]
        if tag == "img":
            assert given.get("alt"), "an image without a description"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(page: Any) -> None:
    text, _, _ = page
    parsed = Page(text)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    for address in parsed.addresses:
        assert address.startswith(("data:", "#"))
        assert not address.startswith("#") or address[1:] in parsed.ids
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    pairs = json.loads(re.search(r'<script id="pairs"[^>]*>(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert set(parsed.pairs) <= set(pairs)
    for pair in pairs.values():
        assert len(pair["boxes"]) == len(pair["regionAttention"][0]) == len(pair["regionGate"])
        assert len(pair["words"]) == len(pair["regionAttention"]) == len(pair["wordGate"])
        assert all(0 <= edge <= 1 for box in pair["boxes"] for edge in box)


def test_it_shows_the_sections_and_the_papers_rows_apart(page: Any) -> None:
    text, _, _ = page
    for name in ("results", "curves", "ranks", "rerank", "why", "text-to-image", "image-to-text", "cards"):
        assert f'id="{name}"' in text
    assert "For orientation: published results on other data sets" in text
    assert "not comparable" in text
    assert "Wang et al., CAMP" in text


def test_a_missing_photograph_is_noted(page: Any) -> None:
    text, notes, _ = page
    assert len(notes) == 1
    assert notes[0].startswith("9.png: photograph not shown")
    assert "9.png: photograph not shown" in text


def test_a_run_without_a_journal_or_attention_has_a_page_too(base_run: Run, tmp_path: Path) -> None:
    path, _ = write_report(base_run, out=tmp_path, device=CPU)
    text = path.read_text(encoding="utf-8")
    assert 'id="curves"' not in text
    assert 'id="rerank"' not in text
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a file is there, expected a folder"):
        write_report(base_run, out=tmp_path / "file", device=CPU)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_it_and_a_click_opens_an_explanation(page: Any, tmp_path: Path) -> None:
    text, _, _ = page
    # The page itself, with errors caught from the first line on and a person's clicks at its end.
    watch = (
        "<script>window.problems=[];addEventListener('error',e=>problems.push(String(e.message)));</script>"
    )
    clicks = """<script>addEventListener("load", async () => {
      const images = [...document.images];
      images.forEach((image) => { image.loading = "eager"; });
      await Promise.all(images.map((image) => image.decode().catch(() => problems.push("not decoded"))));
      const click = (element) => {
        element.scrollIntoView({block: "center", behavior: "instant"});
        const box = element.getBoundingClientRect();
        const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
        if (!element.contains(hit)) problems.push("covered: " + element.className);
        hit.dispatchEvent(new MouseEvent("click", {bubbles: true}));
      };
      const dialog = document.getElementById("explanation");
      const before = dialog.open;
      click(document.querySelector("#text-to-image .hit"));
      const words = [...dialog.querySelectorAll(".word")];
      click(words[1]);
      const result = {
        before, opened: dialog.open, problems, images: images.length,
        panels: document.querySelectorAll("[data-explain] .photo svg mask").length,
        words: words.map((word) => word.textContent), pressed: words[1].getAttribute("aria-pressed"),
        lit: dialog.querySelectorAll("svg mask rect").length, hint: dialog.querySelector(".hint").textContent,
        title: dialog.querySelector("h3").textContent,
      };
      click(dialog.querySelector(".close"));
      result.closed = !dialog.open;
      document.body.innerHTML = "";
      const out = document.createElement("pre");
      out.textContent = "RESULT" + JSON.stringify(result) + "END";
      document.body.append(out);
    });</script>"""
    text = text.replace("<head>", f"<head>{watch}", 1).replace("</body>", f"{clicks}</body>", 1)
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    assert CHROMIUM is not None
    found = None
    for milliseconds in (
        20_000,
        100_000,
        500_000,
    ):  # virtual time runs ahead of the decoders on a busy machine
        done = subprocess.run(
            [CHROMIUM, *flags, "--enable-logging=stderr", "--window-size=1200,900",
             f"--virtual-time-budget={milliseconds}", f"--user-data-dir={tmp_path / 'profile'}",
             "--dump-dom", (tmp_path / "page.html").as_uri()],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )  # fmt: skip
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        assert console == []
        if found := re.search(r"<pre>RESULT(.*?)END</pre>", done.stdout, re.S):
            break
    assert found, done.stdout[-2000:]
    result = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert result["problems"] == []
    assert result["images"] > 20
    assert result["panels"] == 6  # three images with a right and a wrong caption
    assert not result["before"]
    assert result["opened"]
    assert result["pressed"] == "true"
    assert result["words"]
    assert result["lit"] >= 3
    assert result["hint"].startswith(f"What “{result['words'][1]}” looks at.")
    assert result["title"].startswith("“a ")
    assert result["closed"]


def test_queries_are_chosen_from_good_to_bad() -> None:
    ranks = np.array([1, 1, 1, 1, 3, 7, 20, 90, 1, 1])
    groups = np.arange(10) // 2
    chosen = choose_queries(ranks, groups, count=4)
    assert len(chosen) == 4
    assert len({groups[query] for query in chosen}) == 4
    assert {1, 90} & {int(ranks[query]) for query in chosen}
    assert worst_queries(ranks, groups, count=2) == [7, 5]
    assert worst_queries(np.ones(4, np.int64), np.arange(4), count=2) == []
    assert choose_queries(np.array([1]), np.array([0]), count=4) == [0]


def test_ticks_are_round_and_cover_the_values() -> None:
    assert nice_ticks(0, 97) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(3.2, 3.2)[0] <= 3.2 <= nice_ticks(3.2, 3.2)[-1]
    for low, high in ((0.0013, 0.0081), (-5, 12), (1e5, 9e5)):
        ticks = nice_ticks(low, high)
        assert ticks[0] <= low
        assert ticks[-1] >= high
        assert 3 <= len(ticks) <= 8


def test_charts_escape_their_texts_and_may_be_empty() -> None:
    assert line_chart("t", [Series("a", [], 1)], x_label="x", y_label="y") == ""
    chart = bar_chart("<b>", ["1", "2"], {"a&b": [1, 2], "c": [0, 3]}, x_label="x", y_label="y")
    assert "<b>" not in chart
    assert "a&amp;b" in chart
    one = line_chart("t", [Series("a", [(1, 5.0)], 1, labels=["10%"])], x_label="x", y_label="y", log_x=True)
    assert "10%" in one
