"""Tables of the book: rows in, something that a notebook displays out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def show(
    rows: Iterable[Sequence] | Mapping[str, Sequence],
    columns: Sequence[str] | None = None,
    formats: Mapping[str, str] | None = None,
):
    """Display rows, or named columns, as a table without an index.

    Parameters
    ----------
    rows : sequences of cells with ``columns`` as their names, or a mapping of name to cells.
    columns : names of the columns, where ``rows`` has none.
    formats : a format for each column that needs one, e.g. ``{"KL": "{:.4f}"}``.

    Returns a pandas ``Styler``; needs pandas (``pip install "kllab[book]"``).

    Examples
    --------
    >>> table = show([("k1", 0.5), ("k3", 0.25)], ["", "sd"], {"sd": "{:.3f}"})
    >>> "0.250" in table.to_html()
    True
    """
    import pandas as pd

    frame = pd.DataFrame(rows, columns=columns)
    # The class is the one of plain DataFrames, which themes know how to set; a fixed id keeps the
    # output the same from run to run.
    return (
        frame.style.format(formats).hide().set_table_attributes('class="dataframe"').set_uuid("kl")
    )
