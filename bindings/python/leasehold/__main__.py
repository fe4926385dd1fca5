"""The command `leasehold`, which comes with the package as a program of its own."""

from __future__ import annotations

import os
import signal
import sys
from importlib.resources import files
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the command."""
    program = str(files("leasehold").joinpath("_bin", "leasehold"))
    if not os.access(program, os.X_OK):
        sys.exit("leasehold: this installation has no command in it; install a wheel, or the command by cargo")
    # Python ignores it, and whatever the command runs would inherit that.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(program, ["leasehold", *sys.argv[1:]])


if __name__ == "__main__":
    main()
