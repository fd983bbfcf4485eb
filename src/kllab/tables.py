"""Tables of the book: rows in, something that a notebook displays out; and their cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from kllab.simulate import mean_and_error


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


def plus_minus(values: Tensor | tuple, spec: str = ".4f") -> str:
    """A mean and its standard error as text.

    Parameters
    ----------
    values : draws (n,), or the pair (mean, standard error) that is known already.
    spec : format of both numbers; a sign, as in "+.4f", is for the mean.

    Raises ``InputError`` as :func:`kllab.simulate.mean_and_error` does.

    Examples
    --------
    >>> import torch
    >>> plus_minus(torch.tensor([0.1, 0.3]), "+.2f")
    '+0.20 ± 0.10'
    >>> plus_minus((0.2, 0.05))
    '0.2000 ± 0.0500'
    """
    mean, error = values if isinstance(values, tuple) else mean_and_error(values)
    return f"{float(mean):{spec}} ± {float(error):{spec.removeprefix('+')}}"
