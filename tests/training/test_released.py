"""Released checkpoints: same structure, never run as code, everything that does not fit is named."""

from __future__ import annotations

import argparse
import pickle
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from camp.errors import InputError, MismatchError
from camp.evaluation.run_folder import open_run
from camp.models.bfan import Bfan
from camp.models.camp_checkpoint import PARTS
from camp.models.camp_official import CampOfficial
from camp.models.matcher import Matcher
from camp.models.scan import Scan
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


def released(model: Matcher, parts: int = 3) -> list[dict[str, torch.Tensor]]:
    """A model's weights in the released files' names and order."""
    state = model.state_dict()
    return [
        {f"module.{theirs}": state[ours].clone() for theirs, ours in part.items()} for part in PARTS[:parts]
    ]


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


SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "region_dim": 6, "word_dim": 5, "dim": 8}
PUBLISHED = {"raw_feature_norm": "clipped_l2norm", "bi_gru": True, "num_layers": 1, "no_imgnorm": False}


def scan_file(path: Path, model: Matcher, *, legacy: bool = False, **opt: Any) -> Path:
    """A file as SCAN's and BFAN's code saves it: two state dicts and the parsed command line."""
    content = {
        "epoch": 12,
        "model": released(model, parts=2),
        "best_rsum": 465.0,
        "opt": argparse.Namespace(margin=0.2, data_name="f30k_precomp", **opt),
        "Eiters": 9,
    }
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("opt", "expected"),
    [
        (
            {"cross_attn": "t2i", "agg_func": "Mean", "lambda_softmax": 9.0, "lambda_lse": 6.0, **PUBLISHED},
            Scan(**SIZES, direction="t2i"),
        ),
        (
            {
                "cross_attn": "i2t",
                "agg_func": "LogSumExp",
                "lambda_softmax": 4.0,
                "lambda_lse": 20.0,
                **PUBLISHED,
            },
            Scan(**SIZES, direction="i2t", pooling="lse", lse=20.0),
        ),
        ({"focal_type": "equal", "lambda_softmax": 20.0}, Bfan(**SIZES, focus="equal")),
    ],
)
def test_scan_and_bfan_come_in_with_the_same_scores(
    tmp_path: Path, vocab_file: Path, legacy: bool, opt: dict[str, Any], expected: Matcher
) -> None:
    path = scan_file(tmp_path / "model_best.pth.tar", expected, legacy=legacy, **opt)
    imported = import_checkpoint(path, kind="scan", vocab=vocab_file, out=tmp_path / "run", tokenizer="plain")
    assert imported.report.complete
    assert imported.report.unexpected == ()
    assert imported.facts == {"epoch": 12, "best_rsum": 465.0}
    run = open_run(tmp_path / "run")
    assert run.max_words > 1000
    loaded = run.load_model(device=torch.device("cpu"))
    assert type(loaded) is type(expected)
    regions, ids = torch.randn(3, 4, 6), torch.randint(3, 7, (3, 5))
    lengths = torch.tensor([5, 3, 4])
    with torch.no_grad():
        ours, theirs = (
            m.score_block(m.encode_image(regions), m.encode_text(ids, lengths)) for m in (loaded, expected)
        )
    assert torch.equal(ours, theirs)


def test_what_a_scan_file_does_not_say_can_be_set(tmp_path: Path, vocab_file: Path) -> None:
    torch.save({"model": released(Scan(**SIZES), parts=2)}, tmp_path / "m.pth")

    def attempt(**options: Any) -> Any:
        return import_checkpoint(
            tmp_path / "m.pth",
            kind="scan",
            vocab=vocab_file,
            out=tmp_path / "run",
            tokenizer="plain",
            options=options,
        )

    with pytest.raises(
        InputError, match="scan has no option dim, focus, expected direction, pooling, smoothing, lse"
    ):
        attempt(dim=4, focus="prob")
    with pytest.raises(InputError, match="direction='up', expected one of t2i, i2t"):
        attempt(direction="up")
    assert not (tmp_path / "run").exists()
    assert attempt(direction="i2t", smoothing=4.0).options["direction"] == "i2t"
    model = open_run(tmp_path / "run").load_model(device=torch.device("cpu"))
    assert isinstance(model, Scan)
    assert (model.direction, model.smoothing) == ("i2t", 4.0)


def test_scan_files_that_do_not_fit_are_refused(tmp_path: Path, vocab_file: Path) -> None:
    def attempt(path: Path) -> None:
        import_checkpoint(path, kind="scan", vocab=vocab_file, out=tmp_path / "run", tokenizer="plain")

    model = Scan(**SIZES)
    path = scan_file(tmp_path / "m.pth", model, agg_func="Max", bi_gru=False)
    with pytest.raises(
        InputError, match="not supported: agg_func is 'Max', expected 'Mean' or 'LogSumExp'; bi_gru is False"
    ):
        attempt(path)
    torch.save({"model": released(official())}, path)
    with pytest.raises(InputError, match="3 state dicts, expected 2"):
        attempt(path)
    other = Scan(**{**SIZES, "vocab_size": 9})
    with pytest.raises(MismatchError, match="vocabulary of 7 words, the checkpoint's embedding has 9"):
        attempt(scan_file(tmp_path / "m.pth", other))
    torch.save({"model": released(model, parts=2), "opt": Harmful()}, path)
    with pytest.raises(InputError, match="refused, it holds .*print"):
        attempt(path)
    assert not (tmp_path / "run").exists()


_PythonPickler: Any = vars(pickle)["_Pickler"]


class PythonTwoPickler(_PythonPickler):  # type: ignore[misc]
    """Texts as Python 2 pickled them: byte strings."""

    def save_text(self, text: str) -> None:
        self.write(pickle.SHORT_BINSTRING + bytes([len(text)]) + text.encode())
        self.memoize(text)

    dispatch: ClassVar[dict[type, Any]] = {**_PythonPickler.dispatch, str: save_text}


def test_a_file_of_python_2_and_a_gpu(tmp_path: Path, vocab_file: Path) -> None:
    python_two: Any = types.ModuleType("python_two")
    python_two.Pickler = PythonTwoPickler
    python_two.dump = lambda value, stream, protocol: PythonTwoPickler(stream, 2).dump(value)
    content = {
        "model": released(Scan(**SIZES), parts=2),
        "opt": argparse.Namespace(cross_attn="i2t", agg_func="Mean", **PUBLISHED),
    }
    path = tmp_path / "m.pth"
    torch.save(content, path, pickle_module=python_two, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    assert b"ctorch\nFloatStorage\n" in data
    path.write_bytes(data.replace(b"ctorch\nFloatStorage\n", b"ctorch.cuda\nFloatStorage\n"))
    imported = import_checkpoint(path, kind="scan", vocab=vocab_file, out=tmp_path / "run", tokenizer="plain")
    assert imported.report.complete
    assert imported.options["direction"] == "i2t"
