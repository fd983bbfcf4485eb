"""The static picture inside a browser figure."""

from __future__ import annotations

import base64
import io
from html import escape

from matplotlib.figure import Figure

from kllab import figures
from kllab.estimators import K1, K2, K3

STYLE = {
    "svg.hashsalt": "kllab",  # the same picture gives the same bytes
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": figures.QUIET,
    "text.color": figures.INK,
    "xtick.color": "#595959",
}

ESTIMATORS = {"k1": K1, "k2": K2, "k3": K3}


def image(canvas: Figure, alt: str, caption: str) -> str:
    """A figure with its caption; the picture is inside the HTML, so no file is asked for."""
    data = io.BytesIO()
    canvas.savefig(data, format="svg", metadata={"Date": None})
    source = base64.b64encode(data.getvalue()).decode()
    return (
        '<figure style="margin:0"><img style="max-width:100%;height:auto" '
        f'src="data:image/svg+xml;base64,{source}" alt="{escape(alt)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
