"""``python -m torch_tcgnn``: see :mod:`torch_tcgnn.cli`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
