"""The fork server with other imports than its own: forks_of.py MODULE DESCRIPTOR."""

import runpy
import sys
from importlib import import_module
from pathlib import Path

import consortia

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    module = sys.argv.pop(1)
    path = Path(consortia.__file__).parent / "federation" / "forks.py"
    program = runpy.run_path(str(path), run_name="forks")
    program["main"].__globals__["IMPORTED"] = (module,)
    import_module("os")
    program["main"]()
