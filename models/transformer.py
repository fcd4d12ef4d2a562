"""A sequence of vectors -> the same, each having read the others: pre-norm transformer layers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError


class TransformerLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)); padding is never read."""

    def __init__(self, dim: int, *, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise InputError(f"dim {dim} cannot be shared by {heads} heads; choose a multiple")
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.project, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feedforward = nn.Sequential(
            nn.Linear(dim, feedforward), nn.GELU(), nn.Dropout(dropout), nn.Linear(feedforward, dim)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(n, L, d) and (n, L), true where a vector is real."""
        x = x + self.drop(self.attend(self.attention_norm(x), mask))
        return x + self.drop(self.feedforward(self.feedforward_norm(x)))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        n, length, dim = x.shape
        split = self.project(x).view(n, length, 3, self.heads, dim // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # (n, heads, L, d / heads) each
        read = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask[:, None, None, :], dropout_p=self.dropout if self.training else 0.0
        )
        mixed: Tensor = self.out(read.transpose(1, 2).reshape(n, length, dim))
        return mixed


class Transformer(nn.Module):
    """Several layers and a last norm."""

    def __init__(
        self, dim: int, *, layers: int = 6, heads: int = 8, feedforward: int = 2048, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(dim, heads=heads, feedforward=feedforward, dropout=dropout)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        normed: Tensor = self.norm(x)
        return normed
