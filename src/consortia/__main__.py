"""``python -m consortia`` is the command ``consortia``."""

from consortia.cli import main

main()
