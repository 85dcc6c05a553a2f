"""In the place of flwr-clientapp: a site's answers to messages in files."""

import json
import os
import sys
from pathlib import Path

import consortia.engines.flower.grid
import consortia.federation.governance.gate  # noqa: F401
from consortia.federation import app


def flwr_clientapp() -> None:
    folder, output = Path(sys.argv[1]), sys.argv[2]
    config = {"output": output, "origin": str(folder)}
    for path in sorted(folder.glob("*.question")):
        reply = app.answer(folder / "study.toml", path.read_bytes(), {"partition-id": 0}, config)
        path.with_suffix(f".{Path(output).name}").write_bytes(reply)
    (folder / f"{Path(output).name}.json").write_text(json.dumps(os.getpid()))


if __name__ == "__main__":
    flwr_clientapp()
