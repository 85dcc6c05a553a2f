"""How Sphinx builds the site: `make docs` leaves it under `build/site`.

Nothing is asked for over a network when a page is looked at: formulas are MathML, fonts and scripts
are the theme's own files. A warning of the build is an error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "extensions"))

# Before JAX starts, here and in the kernels of the notebooks.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# tqdm, which other packages use, would tell every kernel that ipywidgets is not here.
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"

from consortia.core.version import __version__  # noqa: E402

project = "consortia"
author = "The consortia developers"
copyright = "The consortia developers"
version = release = __version__

extensions = [
    "sphinx.ext.napoleon",
    "sphinx_design",
    "myst_nb",
    "offline",
    "reference_pages",
    "method_pages",
    "notebooks",
]
exclude_patterns = ["extensions"]
needs_sphinx = "8.2"

# A name in single backticks is a link to it where it is public, and else code.
default_role = "py:obj"
html_math_renderer = "mathml"
smartquotes_action = "D"  # dashes; quotation marks stay as they are
toc_object_entries = False  # sections are named after the objects

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Definition lists and the like would take a line with a colon for more than it is.
suppress_warnings: list[str] = []

nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 900
nb_merge_streams = True

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "consortia"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_domain_indices = False  # the reference is one; this one cannot be read on a dark page
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
