"""Rows of features, boxes and tokens -> batches, the way other libraries read them from disk.

Each function writes its copy of the rows where there is none yet and gives batches for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

Rows = Callable[[int, int], np.ndarray]
"""(count, first) -> features (count, R, D) in half precision."""

R, D = 36, 2048


def boxes_of(count: int) -> np.ndarray:
    return np.tile(np.array([0, 0, 9, 9], np.float32), (count, R, 1))


def tokens_of(number: int) -> np.ndarray:
    """The ids of one caption; lengths differ as captions' do."""
    return 1 + np.arange(8 + number % 9) % 999


def epochs(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of one epoch after another."""
    while True:
        yield from loader


def collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a training loop needs of some samples: regions, boxes, padded tokens, lengths."""
    features, boxes, tokens = zip(*samples, strict=True)
    lengths = torch.tensor([len(caption) for caption in tokens])
    padded = pad_sequence([torch.as_tensor(caption) for caption in tokens], batch_first=True)
    return (
        torch.stack([torch.as_tensor(row) for row in features]),
        torch.stack([torch.as_tensor(row) for row in boxes]),
        padded,
        lengths,
    )


class MappedRows(Dataset):  # type: ignore[type-arg]
    """What people write by hand over numpy.memmap; `batched` fetches whole batches, as DataLoader allows."""

    def __init__(self, path: Path, rows: int, *, batched: bool) -> None:
        self.rows = rows
        self.features = np.memmap(path, np.float16, "r", shape=(rows, R, D))
        self.boxes = boxes_of(rows)
        self.tokens = [torch.from_numpy(tokens_of(number)) for number in range(rows)]
        if batched:
            self.__getitems__ = self._batch

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        return np.array(self.features[row]), self.boxes[row], self.tokens[row]

    def _batch(self, indices: list[int]) -> Any:
        tokens = [self.tokens[row] for row in indices]
        return (
            torch.from_numpy(self.features[indices]),
            torch.from_numpy(self.boxes[indices]),
            pad_sequence(tokens, batch_first=True),
            torch.tensor([len(caption) for caption in tokens]),
        )


def as_it_is(batch: Any) -> Any:
    return batch


def dataloader_mmap(
    folder: Path, rows: Rows, count: int, batch: int, workers: int, *, batched: bool
) -> Iterator[Any]:
    path = folder / "features.bin"
    if not path.exists():
        with path.open("wb") as stream:
            for first in range(0, count, 512):
                stream.write(rows(min(512, count - first), first).tobytes())
    loader = DataLoader(
        MappedRows(path, count, batched=batched),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        collate_fn=as_it_is if batched else collate,
        persistent_workers=workers > 0,
        drop_last=True,
    )
    return epochs(loader)


def webdataset(folder: Path, rows: Rows, count: int, batch: int, workers: int) -> Iterator[Any]:
    """Tar files: shards shuffled, then a buffer; there is no global order."""
    import webdataset as wds

    if not (folder / "web").exists():
        (folder / "web").mkdir()
        with wds.ShardWriter(f"{folder}/web/%05d.tar", maxcount=256, verbose=0) as sink:
            for number, row in enumerate(rows(count, 0)):
                sample = {"features.npy": row, "boxes.npy": boxes_of(1)[0], "tokens.npy": tokens_of(number)}
                sink.write({"__key__": f"{number:08d}", **sample})
    shards = sorted(str(path) for path in (folder / "web").glob("*.tar"))
    pipeline = (
        wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False, seed=0)
        .shuffle(1000)
        .decode()
        .to_tuple("features.npy", "boxes.npy", "tokens.npy")
        .batched(batch, collation_fn=collate, partial=False)
    )
    return epochs(
        wds.WebLoader(pipeline, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    )


def litdata(folder: Path, rows: Rows, count: int, batch: int, workers: int) -> Iterator[Any]:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.cache import Cache

    if not (folder / "lit").exists():
        cache = Cache(str(folder / "lit"), chunk_bytes="64MB")
        for number, row in enumerate(rows(count, 0)):
            cache[number] = [row, boxes_of(1)[0], tokens_of(number)]
        cache.done()
        cache.merge()
    loader = StreamingDataLoader(
        StreamingDataset(str(folder / "lit"), shuffle=True, drop_last=True),
        batch_size=batch,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
    )
    return epochs(loader)


def hf_datasets(folder: Path, rows: Rows, count: int, batch: int, workers: int) -> Iterator[Any]:
    """Arrow with its own batched fetch, __getitems__."""
    import datasets

    datasets.disable_progress_bars()
    if not (folder / "hf").exists():
        features = datasets.Features(
            {
                "features": datasets.Array2D((R, D), "float16"),
                "boxes": datasets.Array2D((R, 4), "float32"),
                "tokens": datasets.Sequence(datasets.Value("int64")),
            }
        )
        columns = {
            "features": list(rows(count, 0)),
            "boxes": list(boxes_of(count)),
            "tokens": [tokens_of(number) for number in range(count)],
        }
        datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder / "hf"))
    loader = DataLoader(
        datasets.load_from_disk(str(folder / "hf")).with_format("numpy"),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        collate_fn=collate_columns,
        persistent_workers=workers > 0,
        drop_last=True,
    )
    return epochs(loader)


def collate_columns(samples: list[dict[str, Any]]) -> Any:
    return collate([(sample["features"], sample["boxes"], sample["tokens"]) for sample in samples])
