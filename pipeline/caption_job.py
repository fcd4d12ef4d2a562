"""A data set's captions -> counts or token files, made in parts on any executor; the same as made here.

Parts are committed one by one below the data set, so that the same call goes on after a kill; the result is
merged in the order of the plan, and the parts are removed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import CampError, MismatchError
from ..manifests.dataset import Dataset
from ..progress import Bar, ProgressFactory, no_progress
from ..vocab.counting import TokenCounts
from ..vocab.shelf import open_vocabulary
from ..vocab.tokenizer import Tokenizer
from .caption_options import COUNT, DEFAULT_UNIT_SIZE, ENCODE, CaptionOptions
from .caption_plan import plan_captions
from .caption_worker import describe_captions, parts_fingerprint, read_counts, read_tokens
from .extract_events import Event, Executor, Job, Ready
from .extract_state import ExtractState, control_folder, finished_units, write_state
from .folder_lock import folder_lock
from .job_worker import job_folder
from .leftovers import remove_leftovers
from .plan import Unit
from .tokens import Encode, SplitTokens, join_tokens
from .unit_queue import UnitQueue

Say = Callable[[str], None]

_TITLES = {COUNT: "counting words", ENCODE: "tokenizing"}


def _no_say(text: str) -> None:
    pass


def count_on(
    executor: Executor,
    dataset: Dataset,
    splits: Sequence[str],
    *,
    tokenizer: Tokenizer,
    workers: int | None = None,
    unit_size: int = DEFAULT_UNIT_SIZE,
    progress: ProgressFactory = no_progress,
    say: Say = _no_say,
) -> TokenCounts:
    """The words of some splits, counted by an executor's workers."""
    options = CaptionOptions(task=COUNT, splits=tuple(splits), tokenizer=tokenizer.name)
    job = _CaptionJob(dataset, options, describe_captions(tokenizer), unit_size=unit_size)
    counts = TokenCounts()
    with job.done(executor, workers, progress, say) as units:
        for unit in units:
            part = read_counts(job.folder, unit)
            counts.counter.update(part.counter)
            counts.captions += part.captions
    return counts


def encode_on(
    executor: Executor,
    dataset: Dataset,
    *,
    workers: int | None = None,
    unit_size: int = DEFAULT_UNIT_SIZE,
    progress: ProgressFactory = no_progress,
    say: Say = _no_say,
) -> Encode:
    """What tokenize_dataset takes as `encode`: an executor's workers instead of this process."""

    def encode(splits: Sequence[str], vocab: str, max_words: int | None) -> Iterator[tuple[str, SplitTokens]]:
        options = CaptionOptions(task=ENCODE, vocab=vocab, max_words=max_words)
        _, vocabulary = open_vocabulary(dataset, vocab)
        description = describe_captions(vocabulary.runnable_tokenizer, vocabulary)
        job = _CaptionJob(dataset, options, description, unit_size=unit_size)
        with job.done(executor, workers, progress, say) as units:
            for split in splits:
                parts = (read_tokens(job.folder, unit, split) for unit in units)
                yield split, join_tokens([part for part in parts if part is not None])

    return encode


class _CaptionJob:
    def __init__(
        self, dataset: Dataset, options: CaptionOptions, description: dict[str, object], *, unit_size: int
    ) -> None:
        self._options = options
        self._plan = plan_captions(dataset, unit_size=unit_size)
        self._state = ExtractState(
            identity=options.identity(),
            description=description,
            fingerprint=parts_fingerprint(options, description),
        )
        # Another question has another folder: tasks that a dead driver left on Slurm disturb nobody.
        self._job = Job(
            dataset=str(dataset.root.resolve()),
            name=f"{options.task}-{self._state.fingerprint[:8]}",
            options=options,
            units=len(self._plan),
        )
        self.folder: Path = job_folder(self._job, dataset)

    @contextlib.contextmanager
    def done(
        self, executor: Executor, workers: int | None, progress: ProgressFactory, say: Say
    ) -> Iterator[list[Unit]]:
        """All units done; their parts can be read in the block and are removed after it."""
        with folder_lock(control_folder(self.folder), doing="at work on its captions", instead="data set"):
            remove_leftovers(self.folder)
            write_state(self.folder, self._state)
            finished = self._finished()
            queue = UnitQueue(unit for unit in self._plan if unit.shard not in finished)
            with progress(_TITLES[self._options.task], self._captions(), "captions") as bar:
                bar.advance(self._captions(finished))
                if queue.waiting:
                    self._run(executor, queue, workers, bar, say)
            if len(self._finished()) != len(self._plan):
                raise CampError(
                    f"{self.folder}: parts that were done are gone again; does something else write there? "
                    "Run the same command again"
                )
            yield self._plan
            shutil.rmtree(self.folder)
            with contextlib.suppress(OSError):
                self.folder.parent.rmdir()  # unless another job is at work there

    def _captions(self, shards: set[str] | None = None) -> int:
        return sum(unit.images for unit in self._plan if shards is None or unit.shard in shards)

    def _finished(self) -> set[str]:
        return set(finished_units(self.folder, self._plan, fingerprint=self._state.fingerprint))

    def _run(self, executor: Executor, queue: UnitQueue, workers: int | None, bar: Bar, say: Say) -> None:
        def check(ready: Ready) -> UnitQueue:
            if ready.fingerprint != self._state.fingerprint:
                raise MismatchError(
                    f"{self.folder}: {ready.worker} has another version of {self._options.maker} than this "
                    "machine; install the same release and NLTK data everywhere"
                )
            return queue

        def handle(event: Event) -> None:
            if event.kind == "done":
                bar.advance(event.images)
            elif event.kind in ("note", "error", "lost"):
                say(" ".join(part for part in (event.worker, event.shard, event.text) if part))

        executor.run(self._job, queue=check, workers=workers, emit=handle)
        for shard, (_, reason) in queue.quarantined.items():
            raise CampError(f"{self.folder}: {shard} was given up: {reason}; run the same command again")
