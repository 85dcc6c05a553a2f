"""The command line: ``consortia init``, ``check``, ``run``, ``resume``, ``report`` and the rest.

Everything heavy is imported by the command that needs it, so that a study file with a mistake is
answered before anything else happens. One module a command, put together in `commands`; errors and
exit codes in `exits`.
"""

from __future__ import annotations

import sys

from consortia.cli.streams import lenient, write_error
from consortia.runtime.garbage import collect_seldom, set_imports_aside
from consortia.study.reference import begun_early

UNWRITABLE = 2
"""Exit code of a command whose output is its result, and cannot be written."""


def main() -> None:
    """Run the command ``consortia``; a process for a study's reference is begun beside it."""
    try:
        with lenient(sys.argv[1:]):
            _run()
    except BrokenPipeError:  # who read the output has gone
        raise SystemExit(1) from None
    except OSError as error:
        write_error(f"error: standard output: {error.strerror}")
        raise SystemExit(UNWRITABLE) from None


def _run() -> None:
    with begun_early(sys.argv[1:]) as early:
        collect_seldom()  # before all that is imported here
        from consortia.cli.commands import app
        from consortia.run.compiled import keep_compiled_programs

        set_imports_aside()
        keep_compiled_programs()
        app(obj=early)
