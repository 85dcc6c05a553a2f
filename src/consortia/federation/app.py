"""A study file behind Flower: what its ServerApp does, and what its ClientApp answers."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from consortia.core.queries import Conversation
from consortia.core.target import any_target
from consortia.core.words import duration
from consortia.data.digest import RowDigests
from consortia.data.facts import SiteFacts
from consortia.engines.contract import Engine
from consortia.engines.messages.asking import REFUSAL, REQUEST
from consortia.engines.messages.engine import MessageEngine
from consortia.engines.messages.envelope import Envelope, EnvelopeError, decode, digest_of_any
from consortia.engines.messages.files import identity_of
from consortia.engines.messages.identities import (
    RING,
    KeyRing,
    body_of,
    coordinator_ring,
    read_identity,
    site_ring,
)
from consortia.engines.messages.plausible import MAXIMUM_POSITION, MAXIMUM_STEP
from consortia.engines.messages.pooled import MaskedMoments
from consortia.engines.messages.questions import Leaving, Place, Question, Spending, Wrap
from consortia.engines.messages.runtime import Job
from consortia.engines.messages.secure_sums import plain_key
from consortia.engines.messages.settled import Statement
from consortia.engines.messages.site import (
    AGREEMENT,
    DESCRIPTION,
    Gate,
    MessageSite,
    keyed,
    sum_member,
)
from consortia.engines.messages.stages import check_method
from consortia.engines.messages.transport import Transport
from consortia.errors import InputError, LedgerError, PolicyError
from consortia.federation import governance
from consortia.federation.governance import StudyTerms, load_policy, refusal, terms_of
from consortia.federation.governance.approved import keep_study
from consortia.federation.governance.gate import UNRECORDED
from consortia.federation.governance.terms import MASKED, messages_of, usual_messages
from consortia.report.run_report import VERIFICATION
from consortia.report.study_run import sample_and_report
from consortia.run.verification import Verification
from consortia.runtime import late
from consortia.store.runs import holds_run, read_record
from consortia.study.build import Built, Study, load_study
from consortia.study.runs import (
    COMPARED,
    LEFT_OUT,
    TWO_MODELS,
    beginning,
    compared_over,
    keep_request,
    sample_beside,
)

Config = Mapping[str, Any]

POLICY = "site-policy.toml"
"""File of a site's policy in its folder, unless its configuration names another."""

BEFORE_PHASES = (DESCRIPTION, AGREEMENT)
"""Messages to each site before the first phase."""

_sites: dict[tuple[str, ...], tuple[MessageSite, ...]] = {}
"""Sites of this process for the messages that follow, by study file and node configuration."""


def server_app(study: str | Path) -> Any:
    """Return the ServerApp of a study file."""
    from consortia.engines.flower.grid import server_app_of

    return server_app_of(lambda transport, config: serve(Path(study), transport, config))


def client_app(study: str | Path) -> Any:
    """Return the ClientApp of a study file."""
    from consortia.engines.flower.grid import client_app_of

    return client_app_of(lambda message, node, config: answer(Path(study), message, node, config))


# --- the server ----------------------------------------------------------------------------------


NEEDS_KEYS = (
    "the study's answers leave the sites as secure sums, which needs keys: make the coordinator's "
    "with `consortia site key FOLDER --coordinator`, list it and those of all sites in "
    f"FOLDER/{RING}, and give the run keys = FOLDER (--keys FOLDER of letters). Or the study says "
    "run.secure_sums = false, where every site's policy permits that."
)


def serve(path: Path, transport: Transport, config: Config) -> None:
    """Run a study, or resume it, in its run directory; print the expected time first.

    Args:
        path: the study file.
        transport: carries the messages.
        config: ``output``, ``origin``, ``keys``, ``deadline``, ``resend``, ``join-deadline``,
            ``on-missing``, ``minimum-sites``, ``maximum-position``, ``maximum-step``, ``x64``, as
            in the app's pyproject.toml; ``quiet``, and ``run``, from which the identities of the
            runs follow where a process cannot keep them.

    Raises:
        ConsortiaError: as `consortia.sample`.
    """
    _set_width(config)
    compute_inline()
    import consortia

    study = load_study(path)
    check_method(study.method)
    quiet = bool(config.get("quiet", False))
    for line in () if quiet else _expect_all(study, transport):
        print(line, flush=True)
    directory = _directory(study, config)
    begun = holds_run(directory)
    if begun and _is_finished(study, directory):
        if not quiet:
            print(f"{directory} is finished; another run needs another output.", flush=True)
        return
    ring = _coordinators(config, transport, terms_of(study))
    engine_of = functools.partial(_make_engine, transport=transport, config=config, keys=ring)
    first = engine_of(study)
    built = study.build(first, data_folder=_origin(config))
    engine: MessageEngine | tuple[MessageEngine, ...] = first
    if built.imputations:  # a run of each, which the sites take for studies of their own
        built, engine = _build_imputed(study, built, engine_of, _origin(config))
    begin = beginning(study, built, directory, engine)
    if begun:
        rounds = study.run.rounds
        begin = functools.partial(consortia.resume, directory, rounds=rounds, engine=engine)
    verification, left_out, verify, leave_out = study.verification, study.left_out, None, None
    afterwards = Afterwards(engine_of, _origin(config), quiet)
    if verification is not None:
        built.model.check_posterior("run.verify")
        verify = functools.partial(afterwards.compare, verification)
    if left_out is not None:
        leave_out = functools.partial(afterwards.leave_out, left_out, study.compared, directory)
    sample_and_report(
        study,
        built,
        directory,
        begin,
        request=lambda: keep_request(directory, path, {"reference": False}),
        reference=False,
        quiet=quiet,
        verify=verify,
        leave_out=leave_out,
    )


def _expect_all(study: Study, transport: Transport) -> list[str]:
    """Return in words how long a study and those that are run after it take at least."""
    lines = [expected(study, transport)]
    for other in study.besides:
        name = other.method.name
        # the first imputation stands for all: their runs have the same settings
        if other.imputation == 0:
            name = f"{len(study.imputed)} runs of {name} if values are missing, of which each"
        if not other.imputation:
            lines.append(f"then {name}: {expected(other, transport)}")
    return lines


def _is_finished(study: Study, directory: Path) -> bool:
    """Return True if the run in a directory and its comparisons have ended."""
    compared = study.verification is None or (directory / VERIFICATION).exists()
    compared &= study.left_out is None or (directory / LEFT_OUT).exists()
    return compared and read_record(directory)[0].get("state") == "finished"


def _make_engine(
    study: Study, *, transport: Transport, config: Config, keys: KeyRing | None
) -> MessageEngine:
    """Return the engine that runs a study over a transport."""
    terms = terms_of(study)
    # where the configuration is silent, the engine's own defaults
    return MessageEngine(
        transport,
        labels_of(study, _origin(config)),
        deadline=float(config.get("deadline", 600.0)),
        resend=float(config.get("resend", 120.0)),
        join_deadline=float(config.get("join-deadline", 600.0)),
        on_missing=str(config.get("on-missing", "stop")),
        minimum_sites=int(config.get("minimum-sites", 0)) or None,
        run=_identity(config, terms.study),
        study=terms.study,
        keys=keys,
        registered=study.registered is not None,
        maximum_position=float(config.get("maximum-position", MAXIMUM_POSITION)),
        maximum_step=float(config.get("maximum-step", MAXIMUM_STEP)),
    )


def _build_imputed(
    study: Study, built: Built, engine_of: Callable[[Study], MessageEngine], origin: Path | None
) -> tuple[Built, tuple[MessageEngine, ...]]:
    """Build the study with the rows of each imputation, and the engine of each."""
    if study.verification is not None or study.left_out is not None:
        raise InputError(
            "run.verify, run.loo: with model.missing = 'impute' there is a posterior of each "
            "imputation, and none to compare: leave them out, or set missing = 'complete'."
        ).at("run.verify")
    engines = tuple(map(engine_of, study.imputed))
    pairs = zip(study.imputed, engines, strict=True)
    rows = tuple(imputed.build(engine, data_folder=origin).rows for imputed, engine in pairs)
    return replace(built, sites=rows), engines


@dataclass(frozen=True)
class Afterwards:
    """Studies that are run after another, which the sites take for runs of their own."""

    engine_of: Callable[[Study], MessageEngine]  # makes the engine of each
    origin: Path | None  # of the data in a simulation
    quiet: bool

    def compare(self, other: Study, tree: Any) -> Verification | None:
        """Sample the study with which a run is compared."""
        engine = self.engine_of(other)
        built = other.build(engine, data_folder=self.origin)
        return compared_over(built, engine, quiet=self.quiet)(tree)

    def leave_out(
        self, left_out: Study, other: Study | None, directory: Path, tree: Any
    ) -> str | None:
        """Query the sites for the prediction of rows, with the draws of the model or of two."""
        from consortia.diagnostics.site_sums import told_by_sites

        if tree.attrs["state"] != "finished":
            return None
        trees, names, quiet = [tree], ["the model"], self.quiet
        if other is not None:
            engine = self.engine_of(other)
            built = other.build(engine, data_folder=self.origin)
            trees.append(sample_beside(other, built, directory / COMPARED, engine, quiet=quiet))
            names = list(TWO_MODELS)
        engine = self.engine_of(left_out)
        built = left_out.build(engine, data_folder=self.origin)
        labels = None if built.regression is None else built.regression.labels
        fitted = (trees, built.model, built.rows, engine)
        answers = told_by_sites(*fitted, labels=labels, names=names)
        return "\n\n".join(map(str, answers))


def _coordinators(config: Config, transport: Transport, terms: StudyTerms) -> KeyRing | None:
    """Return the keys of the coordinator, where the configuration names its folder."""
    if keys := str(config.get("keys") or ""):
        return coordinator_ring(Path(keys).expanduser())
    if transport.remote and terms.sums == MASKED:
        raise InputError(NEEDS_KEYS).at("keys")
    return None


def expected(study: Study, transport: Transport) -> str:
    """Return in words how long a study takes at least."""
    method, seconds = study.method, transport.seconds
    if isinstance(method, Conversation):
        # letters carry some of the messages with the first query
        # the sites of a registered study need not agree on anything before
        before = 1 if study.registered is not None else len(BEFORE_PHASES)
        messages = usual_messages(study, method) + before - transport.riding
        counts = f"Usually {messages} messages to each site"
    else:
        algorithm = method.build(any_target())
        each = messages_of(algorithm.phases)  # messages of a round
        before = messages_of(algorithm.fit, algorithm.setup) + len(BEFORE_PHASES)
        rounds = study.run.warmup + study.run.rounds
        messages = before + each * rounds
        counts = f"{rounds} rounds, {each} message{'s' * (each > 1)} each to each site, and "
        counts += f"{before} before them"
    return (
        f"expected wall time: {duration(messages * seconds)} and the sites' own work. {counts}, "
        f"one after the other, about {seconds:g} s each ({transport.kind})."
    )


def _identity(config: Config, study: str) -> str | None:
    """Return the identity of a study's run that follows from a given one; None: it is drawn."""
    given = str(config.get("run") or "")
    return hashlib.sha256(f"{given} {study}".encode()).hexdigest()[:32] if given else None


def _directory(study: Study, config: Config) -> Path:
    output = str(config.get("output") or "") or f"~/consortia/runs/{study.name}"
    return Path(output).expanduser()


def _origin(config: Config) -> Path | None:
    """Return the folder where the study's data are in a simulation."""
    origin = str(config.get("origin") or "")
    return Path(origin) if origin else None


def labels_of(study: Study, origin: Path | None) -> tuple[str, ...]:
    """Return the names of the sites in messages: of their data files, or their indices."""
    if names := study.data.site_names:
        return names
    return tuple(map(str, range(len(study.build(data_folder=origin).rows))))


def _set_width(config: Config) -> None:
    late.set_width(wide=bool(config.get("x64", False)))


# --- a site --------------------------------------------------------------------------------------


def answer(path: Path, message: bytes, node: Config, config: Config) -> bytes:
    """Return a site's reply to a message.

    Args:
        path: the study file.
        message: of the server.
        node: the node's own configuration: ``data`` (the file of this site), ``site`` (its name),
            ``folder`` (where it keeps what must last, and its policy); in a simulation Flower's
            ``partition-id`` instead.
        config: of the run.
    """
    try:
        key = (str(path.resolve()), *(f"{k}={v}" for k, v in sorted(node.items())))
        if key not in _sites:
            _sites[key] = sites_of(path, node, config)
        asked = _envelope_of(message, "study")
        first, *others = _sites[key]
        return next((site for site in others if site.study == asked), first).answer(message)
    except Exception as error:  # whatever it says stays here
        folder = _folder(node, config)
        name = str(node.get("site", ""))

        run = _envelope_of(message, "run")

        def wrap(reason: str) -> bytes:
            values = {REQUEST: digest_of_any(body_of(message)), "reason": reason}
            return Envelope(REFUSAL, run, name, "", (), values).encode()

        return _refusal(folder, name, error, identity_of(run), wrap)


def _envelope_of(message: bytes, part: Literal["run", "study"]) -> str:
    try:
        envelope = decode(body_of(message))
    except EnvelopeError:
        return ""
    return envelope.run if part == "run" else envelope.study


def sites_of(path: Path, node: Config, config: Config) -> tuple[MessageSite, ...]:
    """Return the site of a node, and the same site in the studies that are run after it."""
    study = load_study(path)
    return tuple(site_of(studied, node, config) for studied in (study, *study.besides))


def site_of(
    study: Study,
    node: Config,
    config: Config,
    *,
    private: bool | None = None,
    apart: bool = False,
    made: Callable[..., governance.Gate] | None = None,
) -> MessageSite:
    """Return the site of a node.

    Args:
        study: the study.
        node: as of `answer`.
        config: of the run.
        private: what the phases declare as private comes from a secret of the site, not from the
            study's seed; by default between institutions, and not in a simulation.
        apart: nothing is signed or masked, whatever study and policy say: for a rehearsal, of what
            is left where all other sites help the server.
        made: makes the gate, such as one with a person who is to permit each answer.
    """
    simulated = "site" not in node
    compute_inline()
    if simulated:
        _share_cores()
    _set_width(config)
    terms, folder = terms_of(study), _folder(node, config)
    _keep_compiled(folder)
    files: dict[int, Path] = {}
    labels = study.data.site_names
    if simulated:
        number, origin = int(node["partition-id"]), _origin(config)
        name = labels[number] if number < len(labels) else str(number)
    else:
        name, origin = str(node["site"]), None
        number = study.data.index_of(name)
        files = {number: Path(str(node["data"])).expanduser()}

    def contribute() -> SiteFacts:
        study_folder = study.path.parent if study.path else Path()
        of_study = (study.data.files or ())[study.data.index_of(name)]
        file = files.get(number, (origin or study_folder) / of_study)
        return study.contribution(file, number, *least_rows())

    def digests(key: bytes) -> list[RowDigests]:
        return study.used_rows(files[number], number, key)

    def least_rows() -> tuple[int, int]:
        """Return the fewest rows of a level, and of a pattern of covariates, that may be sent."""
        if simulated:
            return 1, 1
        policy = load_policy(_policy(folder, node))
        return policy.minimum_level_rows, policy.minimum_pattern_rows

    def build(engine: Engine) -> Job:
        level, pattern = least_rows()
        built = study.build(engine, data_folder=origin, files=files, least=level, cells=pattern)
        run = study.run
        parts = built.model, built.rows, built.algorithm, run.chains, run.seed, run.warmup
        return Job(*parts, registered=study.registered is not None)

    def gate(run: str) -> Gate:
        if simulated:
            return Simulated(folder, name)
        policy, gate_class = _policy(folder, node), made or governance.Gate
        required = replace(terms, run=run)
        opened = governance.open_gate(folder, policy, site=name, terms=required, gate=gate_class)
        keep_study(folder, study, terms.study)
        return opened

    return MessageSite(
        name,
        number,
        folder,
        terms.study,
        contribute,
        build,
        gate,
        lambda error, run, wrap: _refusal(folder, name, error, run, wrap),
        private=not simulated if private is None else private,
        digests=None if simulated else digests,
        moments=_moments_of(study),
        keys=lambda: None if simulated or apart else _sites_keys(folder, node, name, terms),
        sums=terms.sums == MASKED and not (simulated or apart),
    )


def _moments_of(study: Study) -> MaskedMoments | None:
    """Return the moments that a study asks for, which keys mask; None of a registered one."""
    if study.data.files is None or study.registered is not None:
        return None
    return MaskedMoments(study.data.site_names, study.summed, study.shown)


def _sites_keys(folder: Path, node: Config, name: str, terms: StudyTerms) -> KeyRing | None:
    """Return the keys that a site's policy names; none where secure sums do not need them."""
    policy = load_policy(_policy(folder, node))
    policy.check_keys(terms)
    return site_ring(folder, name, policy.coordinator, policy.identities)


def prepared_key(study: Study, name: str, data: Path, folder: Path) -> str:
    """Return the key with which a site will take part in the secure sums of a study, in digits.

    Args:
        study: a registered study, of which all that a run begins with is known before it.
        name: of the site.
        data: its rows; the key is good for these only.
        folder: of the site, with its identity.

    Raises:
        InputError: the study needs no such key, or something is missing.
    """
    terms, number = terms_of(study), study.data.index_of(name)
    if study.registered is None or terms.sums != MASKED:
        raise InputError(
            "a key of secure sums is prepared only for a registered study with masked answers: in "
            "this study the sites give their keys during the run, or need none."
        ).at("study")
    identity = read_identity(folder)
    facts = keyed(folder, study.contribution(data, number))
    return "".join(plain_key(sum_member(folder, name, terms.study, identity, facts).key))


def _policy(folder: Path, node: Config) -> Path:
    path = Path(str(node.get("policy") or folder / POLICY)).expanduser()
    if not path.is_file():
        raise PolicyError(
            f"{path}: no such file. A site without a policy takes part in nothing; "
            "`consortia site check --study STUDY.toml` proposes one.",
            rules=("policy",),
        )
    return path


def _folder(node: Config, config: Config) -> Path:
    """Return the folder of a site: its own, or in a simulation one below the run's."""
    if "folder" in node:
        return Path(str(node["folder"])).expanduser()
    if "site" in node:
        return Path.home() / ".consortia" / "sites" / str(node["site"])
    output = str(config.get("output") or "")
    base = Path(output).expanduser() if output else Path(tempfile.gettempdir()) / "consortia"
    return base.with_name(f"{base.name}-sites") / str(node.get("partition-id", "unknown"))


def _refusal(folder: Path, name: str, error: BaseException, run: str, wrap: Wrap) -> bytes:

    try:
        return refusal(error, folder=folder, site=name, run=run, wrap=wrap)
    except LedgerError:  # the one message that no ledger has
        return wrap(UNRECORDED)


def _keep_compiled(folder: Path) -> None:
    """Keep compiled programs for the next process, which Flower starts for each message."""

    def keep() -> None:
        # all programs, however quickly they compile and however small they are
        late.jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
        late.jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        late.jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        late.when_loaded(keep)


def compute_inline() -> None:
    """Let JAX compute in the calling thread: server and sites wait for each of their small results.

    To be called before anything is computed; later it changes nothing.
    """
    late.when_loaded(lambda: late.jax.config.update("jax_cpu_enable_async_dispatch", False))


def _share_cores() -> None:
    """Limit XLA to the threads that Ray gives a process, instead of one a core of the machine.

    Beside the other sites these would wait for cores, and small work is dealt out at a loss.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        os.environ.setdefault("PJRT_NPROC", threads)


class Simulated:
    """The gate of a simulated site: everything may leave, since it is all in one machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def admit(self, kind: str, question: Question) -> bool:
        """Accept any question, as one that was not answered before."""
        return False

    def rows(self, number: int, parameters: int | None = None, cell: int | None = None) -> None:
        """Accept any number."""

    def data(self, rows: Sequence[RowDigests], values: int) -> None:
        """Accept any rows."""

    def holds(self) -> str:
        """Accept that it is not known which rows a run is about."""
        return "all"

    def place(self, where: Place, *, again: bool) -> None:
        """Accept any place."""

    def spend(self, spent: Spending) -> None:
        """Accept any cost."""

    def knows(self, message: str) -> bool:
        """Accept any message: nothing is written down."""
        return True

    def settled(self, statement: Statement | None) -> None:
        """Accept any rows to be determined."""

    def before_masks(self, arrays: Mapping[str, Any]) -> None:
        """Allow any numbers to leave."""

    def release(self, leaving: Leaving) -> bytes:
        """Return the message."""
        return leaving.payload

    def refusal(self, error: BaseException, wrap: Wrap, question: Question | None = None) -> bytes:
        """Return the refusal of any site."""
        return _refusal(self._folder, self._name, error, "", wrap)
