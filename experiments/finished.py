"""The record of a long run that was stopped: of the parts that are finished, and of no others.

    python -m experiments.finished PAPER STUDY --scale full --out runs/papers

takes the parts that ``consortia papers run PAPER --figure STUDY --resume`` of the same commit has
kept in its folder ``--out``, and writes the record there. No sampler runs. Of the studies on images
of `experiments.fa_hmc` settings that are not finished are absent, and so are findings that need
them; of another study all parts must be there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments import claims, records


def collect(paper: claims.Paper, study: claims.Study, scale: str, seed: int, out: Path) -> Path:
    """Write the record of the finished parts of a run, and return its path.

    Raises:
        FileNotFoundError: this commit has kept no parts there.
        experiments.records.UnfinishedError: a part is missing that the study cannot do without.
    """
    folder = records.parts_of(paper, study, scale, seed, out)
    if not folder.is_dir():
        raise FileNotFoundError(f"no parts in {folder}: run the study with --resume first")
    with records.parts_in(folder), records.finished_only():
        record = records.run(paper, study, scale, seed)
    target = out / paper.name / f"{study.name}.{scale}.json"
    records.write(record, target)
    return target


def main() -> None:
    """Collect the study that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paper", choices=claims.PAPERS)
    parser.add_argument("study", help="name of a study")
    parser.add_argument("--scale", choices=claims.SCALES, default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    given = parser.parse_args()
    paper = claims.read(given.paper)
    (study,) = [one for one in paper.studies if one.name == given.study]
    try:
        print(f"wrote {collect(paper, study, given.scale, given.seed, given.out)}")
    except (FileNotFoundError, records.UnfinishedError) as absent:
        parser.exit(1, f"{absent}\n")


if __name__ == "__main__":
    main()
