"""Draw the README's picture, for light and for dark pages: ``python tools/readme_picture.py``."""

from pathlib import Path

from matplotlib import pyplot as plt

import kllab
from kllab import K1, K2, K3, exact, figures

HERE = Path(__file__).resolve().parent.parent / "book" / "_static"
WORDS = 32


def draw(path: Path) -> None:
    words = kllab.pairs.word_frequencies()
    laws = {e.name: exact.sampling_distribution(e, words, WORDS) for e in (K1, K2, K3)}
    ax = plt.subplots(figsize=(6.4, 2.9))[1]
    figures.sampling_distributions(
        laws,
        exact.target_value("kl_qp", words),
        xlim=(-0.3, 1.3),
        shade_negative=True,
        label_left=["k1"],
        ax=ax,
    )
    ax.set_xlabel(f"KL between two tables of English words, estimated from {WORDS} words  [nats]")
    ax.figure.savefig(path, metadata={"Date": None})
    plt.close(ax.figure)


def for_dark_pages(svg: str) -> str:
    """The same picture with ink and paper exchanged, hues kept, as the book's own pages do."""
    flip = "<style>:root{filter:invert(1) hue-rotate(180deg)}</style>"
    head, tag, rest = svg.partition("<defs>")
    return head + flip + tag + rest


if __name__ == "__main__":
    figures.use_style()
    light = HERE / "readme.svg"
    draw(light)
    (HERE / "readme-dark.svg").write_text(for_dark_pages(light.read_text()))
