"""In the place of flwr-clientapp: notes that it has run, and waits where it is told to."""

import os
import sys
import time
from pathlib import Path


def flwr_clientapp() -> None:
    path, seconds = Path(sys.argv[1]), float(sys.argv[2])
    part = path.with_suffix(".part")
    part.write_text(f"{os.getpid()} {os.getppid()}")
    part.rename(path)
    time.sleep(seconds)
