"""Released CAMP checkpoints: same structure, never run as code, everything that does not fit is named."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from camp.errors import InputError, MismatchError
from camp.evaluation.run_folder import open_run
from camp.models.camp_checkpoint import PARTS
from camp.models.camp_official import CampOfficial
from camp.training.released import import_checkpoint
from camp.vocab.interchange import export_vocabulary
from camp.vocab.tokenizer import open_tokenizer
from camp.vocab.vocabulary import Specials, Vocabulary

WORDS = ("<pad>", "<start>", "<end>", "<unk>", "a", "dog", "runs")


@pytest.fixture
def easydict(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class that pickles as easydict.EasyDict does: a dict whose attributes repeat its items."""

    def begin(self: Any, **values: Any) -> None:
        self.update(values)
        self.__dict__.update(values)

    kind = type("EasyDict", (dict,), {"__init__": begin, "__module__": "easydict"})
    module = types.ModuleType("easydict")
    module.EasyDict = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "easydict", module)
    return kind


@pytest.fixture
def vocab_file(tmp_path: Path) -> Path:
    vocabulary = Vocabulary(
        words=WORDS, specials=Specials(unk=3, pad=0, start=1, end=2), tokenizer=open_tokenizer("plain")
    )
    export_vocabulary(vocabulary, tmp_path / "vocab.json", format="scan-json")
    return tmp_path / "vocab.json"


def released(model: CampOfficial) -> list[dict[str, torch.Tensor]]:
    """A model's weights in the released files' names and order."""
    state = model.state_dict()
    return [{f"module.{theirs}": state[ours].clone() for theirs, ours in part.items()} for part in PARTS]


def official(seed: int = 0) -> CampOfficial:
    torch.manual_seed(seed)
    return CampOfficial(vocab_size=len(WORDS), region_dim=6, word_dim=5, dim=8)


@pytest.mark.parametrize("legacy", [False, True])
def test_the_same_structure_comes_in_with_the_same_scores(
    tmp_path: Path, vocab_file: Path, easydict: Any, legacy: bool
) -> None:
    model = official().eval()
    options = easydict(lr=1, net=easydict(a=2))
    content = {"epoch": 12, "model": released(model), "best_rsum": 466.9, "opt": options, "Eiters": 9}
    torch.save(content, tmp_path / "model.pth.tar", _use_new_zipfile_serialization=not legacy)
    imported = import_checkpoint(
        tmp_path / "model.pth.tar", kind="camp", vocab=vocab_file, out=tmp_path / "run", tokenizer="plain"
    )
    assert imported.report.complete
    assert imported.facts == {"epoch": 12, "best_rsum": 466.9}
    loaded = open_run(tmp_path / "run").load_model(device=torch.device("cpu"))
    regions, ids = torch.randn(3, 4, 6), torch.randint(3, 7, (3, 5))
    lengths = torch.tensor([5, 3, 4])
    with torch.no_grad():
        ours, theirs = (
            m.score_block(m.encode_image(regions), m.encode_text(ids, lengths)) for m in (loaded, model)
        )
    assert torch.equal(ours, theirs)


class Harmful:
    def __reduce__(self) -> Any:
        return (print, ("this must never run",))


def test_code_in_the_file_is_refused_by_name(
    tmp_path: Path, vocab_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": released(official()), "opt": Harmful()}, tmp_path / "m.pth")
    with pytest.raises(
        InputError, match=r"m.pth: refused, it holds .*print.*, expected tensors and plain values"
    ):
        import_checkpoint(tmp_path / "m.pth", kind="camp", vocab=vocab_file, out=tmp_path / "run")
    assert "never run" not in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_named(tmp_path: Path, vocab_file: Path) -> None:
    def attempt(content: Any) -> None:
        torch.save(content, tmp_path / "m.pth")
        import_checkpoint(
            tmp_path / "m.pth", kind="camp", vocab=vocab_file, out=tmp_path / "run", tokenizer="plain"
        )

    with pytest.raises(InputError, match="found weights, expected 'model' with three state dicts"):
        attempt({"weights": 1})
    with pytest.raises(InputError, match="2 state dicts, expected 3"):
        attempt({"model": released(official())[:2]})
    other = CampOfficial(vocab_size=9, region_dim=6, word_dim=5, dim=8)
    with pytest.raises(MismatchError, match="vocabulary of 7 words, the checkpoint's embedding has 9"):
        attempt({"model": released(other)})
    (tmp_path / "junk.pth").write_bytes(pickle.dumps([1, 2])[:-2])
    with pytest.raises(InputError, match="junk.pth: "):
        import_checkpoint(tmp_path / "junk.pth", kind="camp", vocab=vocab_file, out=tmp_path / "run")
    with pytest.raises(InputError, match="no such file"):
        import_checkpoint(tmp_path / "absent.pth", kind="camp", vocab=vocab_file, out=tmp_path / "run")


def test_missing_and_unexpected_keys_are_reported(tmp_path: Path, vocab_file: Path) -> None:
    parts = released(official())
    del parts[2]["module.fc_1.0.weight"]
    parts[0]["module.extra"] = torch.zeros(1)
    torch.save({"model": parts}, tmp_path / "m.pth")
    imported = import_checkpoint(
        tmp_path / "m.pth", kind="camp", vocab=vocab_file, out=tmp_path / "run", tokenizer="plain"
    )
    assert imported.report.missing == ("head: fc_1.0.weight",)
    assert imported.report.unexpected == ("regions: extra",)
