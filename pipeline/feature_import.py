"""A foreign feature set -> shards of a data set, joined to its images; killed, it goes on where it was.

A unit of the plan is done when its marker was written for the same rows of the same source. What identifies
a row is cheap: its file's size, first and last bytes, and its place in the file; in folders, each file's
checksums or first and last bytes. Images that the source has no row for keep the row they have from an
earlier import, or else are recorded as failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError, MismatchError, TooManyFailuresError, VerificationError
from ..files import fingerprint
from ..manifests.dataset import Dataset
from ..manifests.source import Findings
from ..progress import Bar, ProgressFactory, no_progress
from ..schema import ImageRow, Regions
from .extract_options import check_name
from .feature_index import check_compatible, finalize, is_done, list_markers, read_marker
from .feature_spec import OPTIONAL_COLUMNS, FeatureSpec
from .joins import Join, join_rows
from .layouts.formats import open_layout
from .layouts.read_ahead import ReadAhead
from .layouts.record import Layout
from .leftovers import remove_leftovers
from .plan import DEFAULT_SHARD_SIZE, Unit, plan_units
from .shard_reader import Shard
from .shard_writer import ShardWriter

_TRIED_ROWS = 100  # of which one must be readable, or the source is refused


@dataclass(frozen=True, kw_only=True)
class FeatureImportOptions:
    """How a foreign feature set comes in; None means: as the features there already are, or the default."""

    join: str = "auto"
    store: str | None = None  # arrow
    dtype: str | None = None  # float16
    regions: int | None = None  # R; the most that a row has
    truncate: bool = False  # keep the first R regions of a row that has more
    shard_size: int = DEFAULT_SHARD_SIZE
    splits: Sequence[str] | None = None
    max_errors: int | None = None


@dataclass(frozen=True, kw_only=True)
class FeatureImportResult:
    """What came in, and what did not."""

    folder: Path
    spec: FeatureSpec
    join: Join
    ids: Sequence[str]  # of the source's rows
    rows: int  # images that have features now
    failed: int  # images that have none
    reasons: Mapping[str, int]
    units: int
    units_done_before: int
    truncated: int  # rows cut to R in this run
    findings: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The result for machines."""
        without = self.join.images_without_row
        unknown = [self.ids[row] for row in self.join.rows_without_image]
        return {
            "features": self.folder.name,
            "spec": self.spec.to_json(),
            "rows": self.rows,
            "failed": self.failed,
            "reasons": dict(self.reasons),
            "shards": {"written": self.units - self.units_done_before, "kept": self.units_done_before},
            "join": {
                "way": self.join.way,
                "matches": self.join.matches,
                "images_without_row": {"count": len(without), "keys": [image.key for image in without]},
                "rows_without_image": {"count": len(unknown), "ids": unknown},
                "rows_for_one_image_twice": len(self.join.repeated_rows),
            },
            "truncated": self.truncated,
            "findings": dict(self.findings),
        }


def import_features(
    dataset: Dataset,
    source: Path,
    *,
    format: str,
    name: str | None = None,
    options: FeatureImportOptions | None = None,
    progress: ProgressFactory = no_progress,
) -> FeatureImportResult:
    """Import what is not yet there; rows that cannot be read are recorded with their reason."""
    options = options or FeatureImportOptions()
    folder = dataset.features_folder(check_name(name or format))
    layout = open_layout(source, format=format, progress=progress)
    try:
        job = _FeatureImport(dataset, layout, source.name, format=format, folder=folder, options=options)
        return job.run(progress)
    finally:
        layout.close()


class _FeatureImport:
    def __init__(
        self,
        dataset: Dataset,
        layout: Layout,
        source_name: str,
        *,
        format: str,
        folder: Path,
        options: FeatureImportOptions,
    ) -> None:
        self._dataset, self._layout, self._folder, self._options = dataset, layout, folder, options
        self._format, self._source_name = format, source_name
        self._findings: Findings = layout.findings
        self._images = list(dataset.image_rows())  # all generations, in order
        self._join = self._join_rows()
        self._row_of = self._join.row_of_image
        self._before = _spec_of(folder)
        self._spec = self._choose_spec()
        self._provenance = {
            "imported": {"format": format},
            "boxes": "pixels" if layout.has_boxes else "none",
        }
        self._truncated = self._failed = 0

    def _join_rows(self) -> Join:
        """The join with all images, as a row of another split is no stranger; then its wanted splits."""
        images, splits = self._images, self._options.splits
        join = join_rows(images, self._layout.ids, way=self._options.join)
        if splits is None:
            return join
        self._dataset.check_splits(splits)
        wanted = {image.image_id for image in images if image.split in splits}
        rows = {image_id: row for image_id, row in join.row_of_image.items() if image_id in wanted}
        if not rows:
            raise InputError(f"{self._source_name}: no row belongs to an image of {', '.join(splits)}")
        without = [image for image in join.images_without_row if image.image_id in wanted]
        return replace(join, row_of_image=rows, images_without_row=without)

    def run(self, progress: ProgressFactory) -> FeatureImportResult:
        options = self._options
        plan = plan_units(self._dataset, shard_size=options.shard_size)
        units = [unit for unit in plan if options.splits is None or unit.split in options.splits]
        check_compatible(self._folder, spec=self._spec, provenance=self._provenance)
        self._check_shards(plan)
        self._check_limit(len(self._join.images_without_row), "no row for them in this source")
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder)
        todo: list[tuple[Unit, str]] = []
        rows: list[int] = []
        for unit in units:
            images = self._unit_images(unit)
            expected = self._fingerprint(unit, images)
            if not self._is_finished(unit, images, expected):
                todo.append((unit, expected))
                rows += [self._row_of[image.image_id] for image in images if image.image_id in self._row_of]
        with (
            progress("import features", sum(unit.images for unit, _ in todo), "images") as bar,
            ReadAhead(self._layout, rows) as ahead,
        ):
            for unit, expected in todo:
                bar.note(unit.shard)
                self._write(unit, expected, ahead, bar)
        index = finalize(
            self._folder,
            provenance=self._provenance,
            spec=self._spec,
            expected_shards=list_markers(self._folder),
        )
        return FeatureImportResult(
            folder=self._folder,
            spec=self._spec,
            join=self._join,
            ids=self._layout.ids,
            rows=sum(counts["rows"] for counts in index["splits"].values()),
            failed=index["failures"]["rows"],
            reasons=index["failures"]["reasons"],
            units=len(units),
            units_done_before=len(units) - len(todo),
            truncated=self._truncated,
            findings=self._findings.as_dict(),
        )

    def _choose_spec(self) -> FeatureSpec:
        """R, D and the columns from the source, unless the features there already say otherwise."""
        options, before = self._options, self._before
        rows = sorted(self._row_of.values())
        first = self._first_readable(rows)
        most = self._layout.max_regions(rows)
        regions = options.regions or (before.regions if before else most)
        if most > regions and not options.truncate:
            raise InputError(
                f"{self._source_name}: rows with up to {most} regions, but {regions} are to be stored; add "
                f"--truncate to keep the first {regions} of each"
                + (", or leave --regions out" if before is None else ", or choose another --name")
            )
        return FeatureSpec(
            regions=regions,
            dim=first.features.shape[1],
            dtype=options.dtype or (before.dtype if before else "float16"),
            store=options.store or (before.store if before else "arrow"),
            columns=tuple(name for name in OPTIONAL_COLUMNS if getattr(first, name) is not None),
            boxes=self._layout.has_boxes,
        )

    def _first_readable(self, rows: Sequence[int]) -> Regions:
        problem: InputError | None = None
        for row in rows[:_TRIED_ROWS]:
            try:
                return self._layout.read(row).regions
            except InputError as error:
                problem = problem or error
        raise InputError(f"{self._source_name}: no readable row among the first {_TRIED_ROWS}: {problem}")

    def _check_shards(self, plan: Sequence[Unit]) -> None:
        """Shards of another size cannot lie beside these: an image would be in two of them."""
        images = {unit.shard: unit.images for unit in plan}
        for shard in list_markers(self._folder):
            try:
                marker = read_marker(self._folder, shard)
            except VerificationError:
                continue  # it is made again
            if marker is not None and images.get(shard) != marker["capacity"]:
                raise MismatchError(
                    f"{self._folder / marker['file']}: made for {marker['capacity']} images, expected "
                    f"{images.get(shard, 'no such shard')}; use the --shard-size of the first import, "
                    "or choose another --name"
                )

    def _unit_images(self, unit: Unit) -> list[ImageRow]:
        """A unit -> its images, from the rows in memory: the join needs them all anyway."""
        generations = self._dataset.generations[: unit.generation]
        first = sum(generation["images"]["rows"] for generation in generations)
        part = self._images[first + unit.first_row : first + unit.last_row + 1]
        images = [image for image in part if image.split == unit.split]
        assert len(images) == unit.images
        return images

    def _fingerprint(self, unit: Unit, images: Sequence[ImageRow]) -> str:
        digest = hashlib.sha256()
        for image in images:
            row = self._row_of.get(image.image_id)
            text = "-" if row is None else f"{self._layout.ids[row]}\0{self._layout.mark(row)}"
            digest.update(f"{image.image_id}\0{text}\n".encode("utf-8", "surrogatepass"))
        return unit.fingerprint(
            fingerprint(
                {
                    "format": self._format,
                    "spec": self._spec.to_json(),
                    "truncate": self._options.truncate,
                    "rows": digest.hexdigest(),
                }
            )
        )

    def _is_finished(self, unit: Unit, images: Sequence[ImageRow], expected: str) -> bool:
        if is_done(self._folder, unit.shard, expected):
            return True
        # Nothing to add to a shard that an earlier import made: it stays as it is.
        nothing_new = not any(image.image_id in self._row_of for image in images)
        return nothing_new and self._stored(unit) is not None

    def _stored(self, unit: Unit) -> Shard | None:
        """The unit's shard as it is now, if it is whole by its size."""
        try:
            marker = read_marker(self._folder, unit.shard)
            return None if marker is None else Shard(self._folder, marker, spec=self._spec)
        except VerificationError:
            return None

    def _write(self, unit: Unit, expected: str, ahead: ReadAhead, bar: Bar) -> None:
        kept = self._kept_rows(unit)
        with ShardWriter(
            self._folder,
            shard=unit.shard,
            spec=self._spec,
            fingerprint=expected,
            capacity=unit.images,
            provenance=self._provenance,
        ) as writer:
            for image in self._unit_images(unit):
                row = self._row_of.get(image.image_id)
                if row is None and image.image_id in kept:
                    writer.add_stored(kept[image.image_id])
                elif row is None:
                    self._fail(writer, image, f"no row in {self._source_name}")
                else:
                    try:
                        writer.add(image.image_id, self._fitted(image, ahead.take(row).regions))
                    except InputError as error:
                        problem = str(error).removeprefix(f"{unit.shard}, image {image.image_id}: ")
                        self._fail(writer, image, problem)
                bar.advance()
            writer.commit()

    def _kept_rows(self, unit: Unit) -> dict[int, Mapping[str, Any]]:
        """Rows of an earlier import, by image, that this source has no better for."""
        shard = self._stored(unit)
        if shard is None:
            return {}
        columns = {column.name: shard.column(column.name) for column in self._spec.layout()}
        return {
            image_id: {name: values[number : number + 1] for name, values in columns.items()}
            for number, image_id in enumerate(columns["image_id"].tolist())
            if image_id not in self._row_of
        }

    def _fail(self, writer: ShardWriter, image: ImageRow, reason: str) -> None:
        writer.fail(image.image_id, reason)
        self._failed += 1
        self._check_limit(self._failed, f"the last one: {image.key}: {reason}")

    def _check_limit(self, failed: int, what: str) -> None:
        limit = self._options.max_errors
        if limit is not None and failed > limit:
            raise TooManyFailuresError(
                f"{failed:,} images without features, more than --max-errors {limit:,}; {what}"
            )

    def _fitted(self, image: ImageRow, regions: Regions) -> Regions:
        """A row as it is stored: cut to R, with the size of the manifest where the source has none."""
        if self._options.truncate and len(regions.features) > self._spec.regions:
            regions = _cut(regions, self._spec.regions)
            self._truncated += 1
        if image.width and image.height:
            if not regions.width or not regions.height:
                return replace(regions, width=image.width, height=image.height)
            if (regions.width, regions.height) != (image.width, image.height):
                self._findings.note(
                    "image sizes that differ from the manifest's",
                    f"{image.key}: {regions.width}×{regions.height}, not {image.width}×{image.height}",
                )
        return regions


def _cut(regions: Regions, count: int) -> Regions:
    names = ("boxes", "features", *OPTIONAL_COLUMNS)
    return replace(
        regions, **{name: values[:count] for name in names if (values := getattr(regions, name)) is not None}
    )


def _spec_of(folder: Path) -> FeatureSpec | None:
    """What the features in a folder are, by any of their markers."""
    for shard in list_markers(folder):
        try:
            marker = read_marker(folder, shard)
        except VerificationError:
            continue
        if marker is not None:
            return FeatureSpec.from_json(marker["spec"], source=folder)
    return None
