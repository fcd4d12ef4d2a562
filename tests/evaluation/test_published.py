"""The data file of published tables."""

from __future__ import annotations

import re

import pytest

from camp.evaluation.published import COLUMNS, comparable_tables, protocol_of, published_tables


def test_headline_rows_stand_as_printed() -> None:
    rows = {
        (table.dataset, table.protocol, table.table, row.method): row.values
        for table in published_tables()
        for row in table.rows
        if table.kind == "recall"
    }
    assert rows["flickr30k", "1k", "Table 2", "CAMP"][:6] == (68.1, 89.7, 95.2, 51.5, 77.1, 85.3)
    assert rows["coco", "1k", "Table 1", "CAMP"][:6] == (72.3, 94.8, 98.3, 58.5, 87.9, 95.0)
    assert rows["coco", "5k", "Table 1", "CAMP"][:6] == (50.1, 82.1, 89.7, 39.0, 68.9, 80.2)
    assert rows["flickr30k", "1k", "Table 1", "VSE++"] == (52.9, None, 87.2, 39.6, None, 79.5, None)


def test_every_table_is_whole_and_named() -> None:
    tables = published_tables()
    assert len(tables) == 14
    assert sum(len(table.rows) for table in tables) == 93
    for table in tables:
        assert re.search(r"(ICCV|AAAI|ECCV|IJCAI) 20\d\d", table.paper)  # where it was published
        assert re.fullmatch(r"Table \d", table.table)  # numbers without a table of their own do not count
        for row in table.rows:
            assert row.method
            assert len(row.values) == len(table.columns)
            if table.kind == "recall":
                assert all(value is None or 0 < value < 100 for value in row.values[:6]), (table.source, row)


def test_recalls_rise_with_the_cutoff_and_sums_are_sums() -> None:
    for table in published_tables():
        if table.columns != COLUMNS:
            continue
        for row in table.rows:
            for first in (0, 3):
                known = [value for value in row.values[first : first + 3] if value is not None]
                assert known == sorted(known), (table.source, row)
            if None not in row.values:
                # The papers round each number: ADAPT's own sums differ by up to 0.1 from their parts.
                assert sum(filter(None, row.values[:6])) == pytest.approx(row.values[6], abs=0.11), row


def test_only_the_same_protocol_is_comparable() -> None:
    assert protocol_of("flickr30k", split="test", images=1000, folds=1) == ("flickr30k", "1k")
    assert protocol_of("coco", split="test", images=5000, folds=5) == ("coco", "1k")
    assert protocol_of("coco", split="test", images=5000, folds=1) == ("coco", "5k")
    assert protocol_of("coco", split="val", images=5000, folds=1) is None
    assert protocol_of("camp-sample", split="test", images=1000, folds=1) is None
    assert comparable_tables("camp-sample", split="test", images=100, folds=1) == []
    found = comparable_tables("flickr30k", split="test", images=1000, folds=1)
    assert {table.protocol for table in found} == {"1k"}
    assert all(table.split == "test" for table in found)
