"""Browser figures in a notebook cell: in the built book, live in JupyterLab, and as a picture.

A figure is a custom element with a static picture inside.  Where the script runs, the picture gives
way to the figure; on paper, on GitHub and without scripts it stays.

- In the build of the book (``KLLAB_BOOK=1``) the page loads one script for all figures, so a cell
  emits the element alone.
- Live, the script travels with the output, as a module.
- Where the script was not built (``npm run build`` makes it), the picture stays and a sentence says
  so, with a link to the published page if ``KLLAB_BOOK_URL`` names one.
"""

from kllab.explorables._dictionary import dictionary
from kllab.explorables._element import Explorable
from kllab.explorables._prefixes import prefixes
from kllab.explorables._simplex_flow import simplex_flow
from kllab.explorables._tangent_line import tangent_line
from kllab.explorables._two_gaussians import two_gaussians
from kllab.explorables._vocabulary import vocabulary

__all__ = [
    "Explorable",
    "dictionary",
    "prefixes",
    "simplex_flow",
    "tangent_line",
    "two_gaussians",
    "vocabulary",
]
