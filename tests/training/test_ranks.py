"""Two real processes over gloo: their sum of gradients is what one process accumulates."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from camp.training.ranks import Ranks, join_ranks

WORKER = """
import sys, torch
torch.set_num_threads(1)
from torch import nn
from camp.training.ranks import join_ranks

ranks = join_ranks(torch.device("cpu"))
torch.manual_seed(ranks.rank)  # other weights on each rank, until they agree
model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
unused = nn.Linear(1, 1)
model.add_module("unused", unused)
ranks.same_weights(model)
data = torch.arange(12.0).reshape(2, 2, 3)[ranks.rank]
(model[1](model[0](data))).sum().backward()
ranks.sum_gradients(model)
assert ranks.agree(ranks.rank == 1) and not ranks.agree(False)
assert ranks.total([1.0, float(ranks.rank)]) == [2.0, 1.0]
found = {"weights": model.state_dict(), "grads": [p.grad for p in model.parameters()]}
torch.save(found, f"{sys.argv[1]}.{ranks.rank}")
ranks.close()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_gradients_are_summed_and_weights_shared(tmp_path: Path) -> None:
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    children = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path / "out")],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors
    saved: list[dict[str, Any]] = [
        torch.load(tmp_path / f"out.{rank}", weights_only=True) for rank in range(2)
    ]
    for name, value in saved[0]["weights"].items():
        assert torch.equal(value, saved[1]["weights"][name])
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    model.add_module("unused", torch.nn.Linear(1, 1))
    model.load_state_dict(saved[0]["weights"])
    data = torch.arange(12.0).reshape(4, 3)
    model[1](model[0](data)).sum().backward()
    for parameter, first, second in zip(
        model.parameters(), saved[0]["grads"], saved[1]["grads"], strict=True
    ):
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(first, expected)
        assert torch.equal(first, second)


def test_alone_nothing_is_joined(monkeypatch: Any) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_ranks(torch.device("cpu")) == Ranks()
    assert Ranks().agree(True)
    assert Ranks().total([2.0]) == [2.0]
