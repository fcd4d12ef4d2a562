"""Mined lists equal a sort of the score matrix; a killed mining goes on and writes the same bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from camp.cli import camp
from camp.errors import CampError, InputError, MismatchError, VerificationError
from camp.evaluation import mine_run as module
from camp.evaluation import mining
from camp.evaluation.mining import hidden_pairs
from camp.evaluation.run_folder import Run
from camp.evaluation.run_scores import open_run_scores
from camp.models import onednn
from camp.pipeline.negatives_file import check_origin, read_header, read_negatives

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining, "TILE", 5)
    monkeypatch.setattr(mining, "BLOCK", 3)
    monkeypatch.setattr(mining, "DEAR_BLOCK", 3)
    monkeypatch.setattr(module, "GROUP", 4)


def mine(run: Run, out: Path, **options: Any) -> module.Mined:
    settings: dict[str, Any] = {"split": "test", "top_captions": 6, "top_images": 4, **options}
    return module.mine_run(run, out=out, device=CPU, save_seconds=0, **settings)


@pytest.mark.parametrize("library", ["as chosen", "torch's own"])
@pytest.mark.parametrize("kind", ["base_run", "camp_run"])
def test_lists_equal_the_sorted_matrix(
    kind: str,
    library: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: Run = request.getfixturevalue(kind)
    if library == "torch's own":
        monkeypatch.setattr(onednn, "usable", lambda rows: False)
    mined = mine(run, tmp_path / "mined.parquet")
    assert not (tmp_path / "mined.parquet.parts").exists()
    assert (mined.images, mined.captions, mined.already) == (8, 24, False)
    measured = open_run_scores(run, split="test", device=CPU)
    rows, scores = measured.rows, measured.matrix().copy()
    scores[rows.caption_image, np.arange(24)] = -np.inf
    found = read_negatives(tmp_path / "mined.parquet")
    assert found.image_ids.tolist() == rows.image_ids.tolist()
    assert found.caption_ids.tolist() == rows.caption_ids.tolist()
    image_of = dict(zip(rows.caption_ids.tolist(), rows.image_ids[rows.caption_image].tolist(), strict=True))
    for image in range(8):
        assert found.captions.shape == (8, 6)
        own = found.image_ids[image]
        assert all(image_of[caption] != own for caption in found.captions[image].tolist())
        mine_scores = scores[image, np.searchsorted(rows.caption_ids, found.captions[image])]
        np.testing.assert_allclose(mine_scores, np.sort(scores[image])[::-1][:6], atol=1e-6)
    for caption in range(24):
        places = np.searchsorted(rows.image_ids, found.images[caption])
        np.testing.assert_allclose(scores[places, caption], np.sort(scores[:, caption])[::-1][:4], atol=1e-6)


def test_a_killed_mining_goes_on_and_writes_the_same_bytes(base_run: Run, tmp_path: Path) -> None:
    mine(base_run, tmp_path / "whole.parquet")
    for survived in (1, 2):
        out = tmp_path / f"killed-{survived}.parquet"

        class Killed(BaseException):
            pass

        @contextlib.contextmanager
        def dying(label: str, total: int | None, unit: str, left: int = survived) -> Iterator[Any]:
            class Bar:
                def __init__(self) -> None:
                    self.blocks = 0

                def advance(self, count: int = 1) -> None:
                    self.blocks += 1
                    if self.blocks > left:
                        raise Killed

                def note(self, text: str) -> None: ...

            yield Bar()

        with pytest.raises(Killed):
            mine(base_run, out, progress=dying)
        assert not out.exists()
        said: list[str] = []
        mined = mine(base_run, out, say=said.append)
        assert mined.resumed == 3 * survived
        assert said == [f"going on: {3 * survived} of 8 images are done"]
        assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
        assert [path.name for path in tmp_path.glob("*.parts")] == []


def test_parts_of_another_mining_and_damage_are_refused(
    base_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mined.parquet"

    def no_disk(*args: Any) -> None:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_negatives", no_disk)
        with pytest.raises(OSError, match="gone"):
            mine(base_run, out)
    with pytest.raises(MismatchError, match=r"top 6 captions and 4 images, but this one is of .*top 5"):
        mine(base_run, out, top_captions=5)
    part = next((tmp_path / "mined.parquet.parts").glob("captions-*.npy"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + b"\x00\x00")
    with pytest.raises(VerificationError, match="damaged or missing"):
        mine(base_run, out)
    part.write_bytes(whole)
    assert mine(base_run, out).resumed == 8


def test_a_finished_file_is_kept(base_run: Run, camp_run: Run, tmp_path: Path) -> None:
    out = tmp_path / "mined.parquet"
    mine(base_run, out)
    before = out.stat().st_mtime_ns
    assert mine(base_run, out).already
    assert out.stat().st_mtime_ns == before
    with pytest.raises(InputError, match="mined otherwise"):
        mine(camp_run, out)


def test_identical_captions_are_no_negatives(base_run: Run) -> None:
    rows = open_run_scores(base_run, split="test", device=CPU).rows
    tokens, lengths = rows.tokens.pad(rows.caption_rows)
    words = [tuple(ids[:length]) for ids, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
    expected = {
        (int(rows.caption_image[other]), caption)
        for caption in range(24)
        for other in range(24)
        if words[other] == words[caption]
    }
    assert len(expected) > 24, "the test needs captions of the same words"
    found = hidden_pairs(rows, skip_identical=True)
    assert set(zip(found.images.tolist(), found.captions.tolist(), strict=True)) == expected
    plain = hidden_pairs(rows)
    own = set(zip(rows.caption_image.tolist(), range(24), strict=True))
    assert set(zip(plain.images.tolist(), plain.captions.tolist(), strict=True)) == own


def test_origin_is_checked(base_run: Run, tmp_path: Path) -> None:
    out = tmp_path / "mined.parquet"
    mine(base_run, out)
    header, dataset = read_header(out), base_run.dataset()
    good: dict[str, Any] = {
        "dataset": dataset,
        "split": "test",
        "features": header["features"]["fingerprint"],
        "vocab": header["vocab"]["fingerprint"],
    }
    assert check_origin(out, **good) == header
    with pytest.raises(MismatchError, match=r"mined from split 'test', expected 'train'"):
        check_origin(out, **{**good, "split": "train"})
    with pytest.raises(MismatchError, match=r"mined with features 'made' .* this run has other"):
        check_origin(out, **{**good, "features": "other"})
    assert check_origin(out, **{**good, "features": "other", "vocab": "x"}, other_inputs=True) == header
    with pytest.raises(InputError, match="make it with 'camp mine RUN"):
        read_header(tmp_path / "absent.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(VerificationError, match="not a file of mined negatives"):
        read_header(tmp_path / "bad.parquet")


def test_a_diverged_model_is_told(base_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "model_blocks", lambda *a, **k: (lambda block: lambda tile: torch.full((3, 5), torch.nan), 3)
    )
    with pytest.raises(CampError, match="a score of images 0 to 2 is not a number"):
        mine(base_run, tmp_path / "mined.parquet")


def test_the_command(base_run: Run, tmp_path: Path) -> None:
    out = str(tmp_path / "mined.parquet")
    arguments = ["mine", str(base_run.folder), "--split", "test", "--top", "6", "--out", out]
    result = CliRunner().invoke(camp, arguments)
    assert result.exit_code == 0, result.output
    assert "the 6 hardest captions of each of 8 images\nthe 1 hardest images of each of 24" in result.stdout
    assert "is there already" in CliRunner().invoke(camp, arguments).stdout
