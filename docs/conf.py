"""Sphinx settings. Needs no GPU and no installed package: every ``packages/*/src`` is put on the path."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]

project = "torch-* extensions"
html_title = "Nine extensions of PyTorch"
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "api_pages",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_show_copyright = False
html_static_path = ["_static"]
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Reference", "Source"]

doctest_test_doctest_blocks = ""  # docstrings are tested by pytest, in the namespace of their module; pages here
doctest_global_setup = "import torch; torch.manual_seed(0)"
