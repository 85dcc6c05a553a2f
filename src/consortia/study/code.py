"""The Python files of a study's own model: which they are, and which the user has run before.

A factory is code: it runs with the rights of whoever builds its study. Commands that look at what
somebody else may have made ask here first.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
from importlib.machinery import PathFinder
from pathlib import Path

from consortia.data.downloads import cache_directory
from consortia.errors import InputError, wrong
from consortia.store.durable import private

KNOWN = "factories.txt"
"""File in the user's cache directory: a hash a line, of what the user has had run."""

WARNING = "a factory is code and runs with your rights"

DIGITS = 64


def may_run(factory: str | None, folder: Path, *, code: bool) -> bool:
    """Return True if a study has no factory, or one that ran before or may with ``code``.

    What the user permits by ``code`` is remembered.
    """
    if factory is None:
        return True
    if code:
        remember(factory, folder)
    return code or hash_of(factory, folder) in _known()


def remember(factory: str | None, folder: Path) -> None:
    """Note that the user has a factory run; where nothing can be noted, nothing is."""
    if factory is None or (digest := hash_of(factory, folder)) in _known():
        return
    cache = cache_directory()
    with contextlib.suppress(OSError):  # the next command will ask for the word again
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(cache / KNOWN, "a", encoding="ascii", opener=private) as file:
            file.write(f"{digest}\n")


def hash_of(factory: str, folder: Path) -> str:
    """Return the SHA-256 of a factory's name and of the files of `modules`."""
    text = json.dumps([factory, modules(factory, folder)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _known() -> set[str]:
    """Return the hashes of what the user has run; of a list that others may write, none."""
    try:
        with open(cache_directory() / KNOWN, encoding="ascii") as file:
            status = os.fstat(file.fileno())
            if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
                return set()
            return {line.strip() for line in file if len(line.strip()) == DIGITS}
    except (OSError, ValueError):
        return set()


# --- which files ---------------------------------------------------------------------------------


def modules(factory: str | None, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each Python file of a factory, by its name in the study's folder.

    Those that ``import`` statements reach. What the code loads by other means (`importlib`, a file
    that it opens) is not among them.

    Raises:
        InputError: the factory's module is not there, or a file is not Python.
    """
    if factory is None:
        return {}
    name = factory.partition(":")[0]
    if not files_of(folder, name):
        return {name: _installed(name)}
    digests: dict[str, str] = {}
    waiting = files_of(folder, name)
    while waiting:
        file = waiting.pop()
        key = file.relative_to(folder).as_posix()
        if key in digests:
            continue
        text = file.read_bytes()
        digests[key] = hashlib.sha256(text).hexdigest()
        for imported in _imports(text, file, folder):
            waiting += files_of(folder, imported)
    return digests


def files_of(folder: Path, name: str) -> list[Path]:
    """Return the files that an import of a module beside the study runs: it and its packages."""
    parts = name.split(".")
    files = []
    for length in range(1, len(parts) + 1):
        path = folder.joinpath(*parts[:length])
        candidates = (path.with_suffix(".py"), path / "__init__.py")
        files += [candidate for candidate in candidates if os.path.isfile(candidate)]
    return files


def _imports(text: bytes, file: Path, folder: Path) -> set[str]:
    """Return the modules that a file imports, relative ones from the folder on."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{file} is not Python: {error}.").at(file=str(file)) from None
    package = file.relative_to(folder).with_suffix("").parts[:-1]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*start, *((node.module,) if node.module else ())))
            imported.add(base)
            imported |= {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
    return imported - {""}


def _installed(name: str) -> str:
    """Return the SHA-256 of the text of an installed module; no package is imported to find it."""
    parts, places, spec = name.split("."), None, None
    for length in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:length]), places)
        places = None if spec is None else spec.submodule_search_locations
        if spec is None or (length < len(parts) and places is None):
            spec = None
            break
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        raise wrong("model.factory", f": the module {name!r} was not found next to the study file.")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
