"""Models by name; the twelve rows of Table 3; released checkpoints by their keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from camp.errors import InputError, MismatchError
from camp.models.build import TABLE_3, build_model, model_options
from camp.models.camp_checkpoint import PARTS, camp_from_checkpoint, rename_keys
from camp.models.camp_official import CampOfficial
from camp.models.losses import build_loss
from camp.models.scan_checkpoint import bfan_from_checkpoint, scan_from_checkpoint

VOCAB_SIZE, REGION_DIM, WORD_DIM, DIM = 11, 6, 5, 4


def test_table_3_has_twelve_rows_that_can_be_built() -> None:
    assert len(TABLE_3) == 12
    for row in TABLE_3.values():
        model = build_model(row.model, vocab_size=5, options={"dim": 4, "region_dim": 3, **row.options})
        build_loss(row.loss, **row.loss_options)
        assert model.scores_are_logits == (row.loss.startswith("bce") or bool(row.loss_options))
    kinds = [(row.model, tuple(row.options.items()), row.loss) for row in TABLE_3.values()]
    assert len(set(kinds)) == 12


def test_unknown_names_suggest_close_ones() -> None:
    with pytest.raises(InputError, match=r"model 'camps' \(did you mean 'camp'\?\)"):
        build_model("camps", vocab_size=3)
    with pytest.raises(InputError, match=r"no option residuals \(did you mean 'residual'\?\)"):
        build_model("camp", vocab_size=3, options={"residuals": False})
    assert model_options("camp")["affinity_dim"] == 256
    assert "vocab_size" not in model_options("camp")


def released(model: CampOfficial) -> list[dict[str, Tensor]]:
    """A checkpoint's three state dicts, as the published code saves them."""
    state = model.state_dict()
    return [{f"module.{theirs}": state[ours].clone() for theirs, ours in keys.items()} for keys in PARTS]


@pytest.fixture
def official(make_model: Any) -> CampOfficial:
    torch.manual_seed(3)
    return CampOfficial(vocab_size=VOCAB_SIZE, region_dim=REGION_DIM, word_dim=WORD_DIM, dim=DIM)


def test_every_tensor_of_the_model_has_a_released_name(official: CampOfficial) -> None:
    ours = [name for keys in PARTS for name in keys.values()]
    assert sorted(ours) == sorted(official.state_dict())
    theirs = [set(keys) for keys in PARTS]
    assert len(theirs[1]) == 9
    assert {"img_key_fc.weight", "weighted_txt_query_fc.weight", "fc_1.0.weight", "fc_out.3.bias"} <= theirs[
        2
    ]
    assert "final_reduce_2.linear.2.weight" in theirs[2]


def test_a_released_checkpoint_gives_the_same_scores(official: CampOfficial) -> None:
    model, report = camp_from_checkpoint(released(official), vocab_size=VOCAB_SIZE)
    assert report.complete
    assert report.lines() == [f"{len(official.state_dict())} tensors loaded"]
    regions, ids = torch.randn(2, 3, REGION_DIM), torch.randint(VOCAB_SIZE, (2, 4))
    lengths = torch.tensor([4, 2])
    scores = [m.score_block(m.encode_image(regions), m.encode_text(ids, lengths)) for m in (model, official)]
    assert torch.equal(*scores)


def test_missing_and_unexpected_keys_are_reported(official: CampOfficial) -> None:
    parts = released(official)
    del parts[2]["module.fc_2.0.weight"]
    parts[2]["module.fc_gate_1.0.weight"] = torch.zeros(1)
    state, report = rename_keys(parts)
    assert "side_text.fuse.weight" not in state
    assert not report.complete
    assert report.missing == ("head: fc_2.0.weight",)
    assert report.unexpected == ("head: fc_gate_1.0.weight",)
    assert report.lines()[1:] == ["missing: head: fc_2.0.weight", "not used: head: fc_gate_1.0.weight"]


def test_checkpoints_that_do_not_fit_are_refused(official: CampOfficial) -> None:
    with pytest.raises(MismatchError, match="vocabulary of 12 words, the checkpoint's embedding has 11"):
        camp_from_checkpoint(released(official), vocab_size=12)
    with pytest.raises(InputError, match="checkpoint with 2 state dicts, expected 3"):
        camp_from_checkpoint(released(official)[:2], vocab_size=VOCAB_SIZE)
    parts = released(official)
    parts[2]["module.fc_1.0.weight"] = torch.zeros(DIM, DIM)
    with pytest.raises(MismatchError, match=r"side_image\.fuse\.weight \(4, 4\) instead of \(4, 8\)"):
        camp_from_checkpoint(parts, vocab_size=VOCAB_SIZE)
    with pytest.raises(InputError, match=r"checkpoint without image\.fc\.weight"):
        camp_from_checkpoint([{}, parts[1], parts[2]], vocab_size=VOCAB_SIZE)


def test_scan_checkpoints_are_two_encoders(official: CampOfficial) -> None:
    parts = released(official)[:2]
    scan, report = scan_from_checkpoint(parts, vocab_size=VOCAB_SIZE, options={"direction": "i2t"})
    assert report.complete
    assert scan.direction == "i2t"
    assert sorted(scan.state_dict()) == sorted(name for keys in PARTS[:2] for name in keys.values())
    assert torch.equal(scan.state_dict()["image.fc.weight"], official.state_dict()["image.fc.weight"])
    bfan, _ = bfan_from_checkpoint(parts, vocab_size=VOCAB_SIZE)
    assert torch.equal(bfan.state_dict()["text.rnn.bias_hh_l0"], official.state_dict()["text.rnn.bias_hh_l0"])
    with pytest.raises(InputError, match=r"checkpoint with 3 state dicts, expected 2 \(regions, words\)"):
        scan_from_checkpoint(released(official), vocab_size=VOCAB_SIZE)
    one_way = [parts[0], {name: value for name, value in parts[1].items() if "reverse" not in name}]
    _, report = scan_from_checkpoint(one_way, vocab_size=VOCAB_SIZE)
    assert len(report.missing) == 4
