"""``python -m torch_flexattn``: see :mod:`torch_flexattn.cli`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
