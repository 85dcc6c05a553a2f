"""Reasons why a site and the server cannot run a study together, in phrases that may leave it."""

from __future__ import annotations

from consortia.errors import InputError

PHRASES = {
    "site": "the message is for another site",
    "study": "the server runs another study than the site has",
    "model": "its model is not that of the server: the densities, or constants in them, differ",
    "facts": "its rows have changed since the run was prepared",
    "start": "the server begins elsewhere than seed and init of the study say",
    "begun": "the run has not begun there, or the folder of the site was emptied",
    "beginning": "the run began with something else there: its folder was put back from a backup",
}


class MismatchError(InputError):
    """A message is not for this site, or of another study than the site's.

    Attributes:
        code: of `PHRASES`.
    """

    def __init__(self, code: str) -> None:
        super().__init__(PHRASES[code])
        self.code = code
