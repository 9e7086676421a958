"""``doctor``: what of this package works on this machine. Exit status 1 where something fails."""

from __future__ import annotations

import argparse
from typing import Any

from ..examination import doctor as examine


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("doctor", help="try what works on this machine", description=__doc__)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the findings."""
    findings = examine()
    for finding in findings:
        print(finding)
    return int(any(finding.status == "fails" for finding in findings))
