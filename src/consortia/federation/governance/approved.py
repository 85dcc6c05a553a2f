"""Parts of a study that no study had which a site has answered before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from consortia.errors import InputError
from consortia.federation.governance.gate import LEDGER
from consortia.federation.governance.ledger import verify
from consortia.federation.governance.terms import terms_of
from consortia.store.durable import replace_file
from consortia.study.build import load_study

if TYPE_CHECKING:
    from consortia.study.build import Study

STUDIES = "studies"
"""Folder of the studies that a site has kept, by their fingerprints, in its own folder."""

BY_LETTERS = "letters/*/study.toml"
"""Studies that came by letters, which are kept by runs."""


def keep_study(folder: Path, study: Study, fingerprint: str) -> None:
    """Keep the text of a study that a site answers; one with code of its own needs more than it."""
    kept, has_code = folder / STUDIES / f"{fingerprint}.toml", study.model.factory is not None
    has_code = has_code or (study.compare is not None and study.compare.factory is not None)
    if has_code or study.path is None or not study.path.is_file() or kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(kept, [study.path.read_bytes()], private=True)


def answered_before(folder: Path, study: str) -> list[Study]:
    """Return the other studies of which answers have left a site; ``study`` is a fingerprint.

    Raises:
        InputError: a study that the site has kept cannot be read.
    """
    entries = verify(folder / LEDGER).entries if (folder / LEDGER).exists() else ()
    sent = {entry.run for entry in entries if entry.event == "released"}
    opened = {e.details["study"] for e in entries if e.event == "opened" and e.run in sent}
    kept_studies: dict[str, Study] = {}
    for path in sorted([*folder.glob(f"{STUDIES}/*.toml"), *folder.glob(BY_LETTERS)]):
        try:
            kept = load_study(path)
            kept_studies[terms_of(kept).study] = kept
        except InputError as error:
            raise InputError(
                f"{path}, a study that was answered before, cannot be read: {error}. Put it back, "
                "or remove its folder."
            ).at(file=str(path)) from error
    return [kept for name, kept in kept_studies.items() if name in opened - {study}]


def differences(study: Study, before: Sequence[Study]) -> str:
    """Return in a sentence what a study asks that none of those before did."""
    if not before:
        return "Your site has answered no other study, so that there is nothing to compare with."
    known = {part for other in before for part in _parts(other)}
    new: dict[str, list[str]] = {}
    for kind, text in dict.fromkeys(_parts(study)):
        if (kind, text) not in known:
            new.setdefault(kind, []).append(text)
    count = f"{len(before)} other {'study' if len(before) == 1 else 'studies'}"
    if not new:
        return (
            f"Your site has answered {count}. This one asks for no column, term, row, change or "
            "function that none of them did; the same again still adds to what is known."
        )
    listed = "; ".join(f"{kind}: {', '.join(texts)}" for kind, texts in new.items())
    return (
        f"Your site has answered {count}. None of them had what this one has: {listed}. With "
        "other rows than a study before, the difference of two results is about those rows."
    )


def _parts(study: Study) -> Iterator[tuple[str, str]]:
    """Yield the parts of a study by which two are compared, each with its kind."""
    terms, data, question = terms_of(study), study.data, study.model.question
    for part in terms.every:
        yield from (("functions", name) for name in part.queried)
        yield from (("exact answers", name) for name in part.exact)
        yield from (("messages", kind) for kind in part.messages)
        yield "methods", part.algorithm
    yield "rows", "all" if data.keep is None else f"those with {data.keep}"
    yield "rows", f"with {study.model.options.get('missing', 'refuse')} values"
    yield from (("rows", f"those with a value of {name}") for name in data.require or ())
    if question is None:
        yield "models", study.model.factory or str(study.model.kind)
        yield "columns", f"all, with {data.target} as response"
    else:
        yield from (("columns", name) for name in question.columns)
        yield from (("terms", name) for name in question.parsed.factors)
        yield from (("terms", group.text) for group in question.parsed.groups)
        yield "models", question.family.name
    if (stated := study.registration) is not None:
        for name, levels in stated.levels.items():
            yield "levels", f"{name} in {', '.join(levels)}"
        for name, (low, high) in stated.ranges.items():
            yield "bounds", f"{name} from {low:g} to {high:g}"
    for site, changes in study.harmonise.items():
        for name, value in changes.model_dump(exclude_defaults=True).items():
            items = value.items() if isinstance(value, dict) else [("", value)]
            yield from (("changes", f"{site} {name} {key} {to}") for key, to in items)
