"""Columns of tables: their levels."""

from __future__ import annotations

import numpy as np

from consortia.data.columns import Column, coded_levels


def test_levels_are_coded_by_name_however_their_values_were_read() -> None:
    missing = np.array([False, False, True, False, False])
    numbers = Column("number", np.array([10.0, 9.0, np.nan, 10.0, 1.5]), missing)
    texts = Column("text", np.array(["10", "9", "NA", "10", "1.5"]), missing)
    read = Column("number", numbers.values, missing, given=texts.values)
    for column in (numbers, texts, read):
        names, codes = coded_levels(column)
        assert names == ["1.5", "10", "9"]
        assert codes.tolist() == [1, 2, -1, 1, 0]
    truth = Column("truth", np.array([1.0, 0.0, 1.0]), np.zeros(3, bool))
    assert coded_levels(truth)[0] == ["False", "True"]
