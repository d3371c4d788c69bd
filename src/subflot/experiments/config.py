"""The settings of a run: everything that can change a number, and nothing else."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from subflot.algorithms import ALGORITHMS, Algorithm, make
from subflot.data.partition import PARTITIONS
from subflot.data.sets import find as find_set
from subflot.errors import SubflotError, UnknownName
from subflot.experiments.own import Folder, check_own
from subflot.models import find as find_model
from subflot.models.load import digest
from subflot.results import CONFIG, RunRecord
from subflot.simulation.merging import check_merging
from subflot.simulation.models import check_taken
from subflot.task import LocalTraining
from subflot.texts import check_writable, toml_value

RESULTS_VERSION = 1
"""Raised with every change that can move numbers of all methods; runs of another version are run
again. What concerns one method raises its own `Algorithm.version`."""
RUN_ID = re.compile(r"[a-z0-9-]+-s-?\d+-[0-9a-f]{10}")
"""What names of runs look like."""
PARTS = ("algorithm", "partition", "data", "model")
"""What is named and has settings of its own."""


@dataclass(frozen=True)
class RunConfig:
    """One run. `RunConfig.of(rounds=3, global_share=0.3)` finds for each key where it belongs.

    Attributes:
        name: the folder that the run's own folder lies in.
        algorithm: a method; `subflot algorithms` lists them.
        data: a data set; `subflot data list` lists them.
        model: a bundled network, or FILE.py:Class.
        model_digest: of the content of that file, so that a changed model is another run.
        partition: how the data is divided among the clients.
        num_clients: N; 0 for one per group, or 20 where there are none.
        per_round: clients that take part in a round; 0 for all.
        rounds: T.
        seed: fixes everything that is drawn.
        pruning_rates: each client draws its rate from these.
        client_rates: instead, the rate of every client.
        budgets: instead, each client draws what it can hold from these.
        budget: what the budgets count: parameters, multiply_adds or bytes.
        redraw_every: draw the rates anew every so many rounds; 0 for never.
        epochs, batch_size, learning_rate, momentum, weight_decay, max_norm: local training.
        max_examples: use only so many, of every class and group the same share; 0 for all.
        test_share: of each client's examples; negative for what is usual for the data.
        validation_share: of the other examples, set apart from training.
        measure_on: `test`, or `validation` for choosing settings.
        evaluate_every: models are measured in every round that this divides, and in the last.
        proxy_share: of all training examples, held by the server; for methods that need some.
        models: a folder with models that clients bring, in files called ID.safetensors.
        models_digest: of the content of those files.
        own_epochs: instead, clients first train a model of their own, alone, for so many epochs.
        owner_share: of all clients, those that do.
        own_round: the round in which clients with a model of their own join.
        merging: `mean`, or against hostile clients `clipped`, `median` or `trimmed`.
        device: where models are trained.
    """

    name: str = "run"
    algorithm: str = "subflot"
    data: str = "digits"
    model: str = "digits-cnn"
    model_digest: str = ""
    partition: str = "dirichlet"
    num_clients: int = 0
    per_round: int = 0
    rounds: int = 20
    seed: int = 0
    pruning_rates: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    client_rates: tuple[float, ...] = ()
    budgets: tuple[float, ...] = ()
    budget: str = "parameters"
    redraw_every: int = 0
    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_norm: float = 0.0
    max_examples: int = 0
    test_share: float = -1.0
    validation_share: float = 0.0
    measure_on: str = "test"
    evaluate_every: int = 1
    proxy_share: float = 0.02
    models: str = ""
    models_digest: str = ""
    own_epochs: int = 0
    owner_share: float = 1.0
    own_round: int = 1
    merging: str = "mean"
    device: str = "cpu"
    algorithm_settings: Mapping[str, Any] = field(default_factory=dict)
    partition_settings: Mapping[str, Any] = field(default_factory=dict)
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    model_settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, **settings: Any) -> "RunConfig":
        """Make a config from flat settings.

        Those of the method, the partition, the data and the model find their way by name.
        """
        own = {f.name: f for f in fields(cls) if not f.name.endswith("_settings")}
        given = {
            key: _typed(key, value, own[key].default)
            for key, value in settings.items()
            if key in own
        }
        config = cls(**given)
        if ":" in config.model and not config.model_digest:
            config = replace(config, model_digest=digest(config.model))
        if config.models and not config.models_digest:
            config = replace(config, models_digest=Folder(config.models).digest())
        offered = {part: config._offers(part) for part in PARTS}
        found: dict[str, dict[str, Any]] = {part: dict(offered[part]) for part in PARTS}
        for key in settings.keys() - own.keys():
            takers = [part for part in PARTS if key in offered[part]]
            if not takers:
                known = [*own, *(name for part in PARTS for name in offered[part])]
                raise UnknownName("setting", key, known, "subflot run --help")
            for part in takers:
                default = offered[part][key]
                if part == "algorithm" and _has_words(ALGORITHMS[config.algorithm], key):
                    # Given a word, `make` checks it; a number is of the number's type.
                    default = None if isinstance(settings[key], str) else 0.0
                found[part][key] = _typed(key, settings[key], default)
        parts: dict[str, Any] = {f"{part}_settings": found[part] for part in PARTS}
        config = replace(config, **parts)
        config._check()
        return config

    def _offers(self, part: str) -> dict[str, Any]:
        """The settings that the named method, partition, data set or model has, with defaults."""
        if part == "algorithm":
            if self.algorithm not in ALGORITHMS:
                raise UnknownName("algorithm", self.algorithm, ALGORITHMS, "subflot algorithms")
            return _defaults(ALGORITHMS[self.algorithm])
        if part == "partition":
            if self.partition not in PARTITIONS:
                raise UnknownName(
                    "partition", self.partition, PARTITIONS, "subflot data show --help"
                )
            return PARTITIONS[self.partition].settings
        if part == "data":
            return _defaults(find_set(self.data).settings)
        return {} if ":" in self.model else model_settings(find_model(self.model).build)

    def _check(self) -> None:
        for key, value in self.flat().items():
            check_writable(key, value)
        _ = self.method, self.local  # They check their own settings.
        check_merging(self.merging)
        for key, least in (
            ("rounds", 1),
            ("num_clients", 0),
            ("per_round", 0),
            ("evaluate_every", 1),
            ("redraw_every", 0),
            ("max_examples", 0),
            ("own_epochs", 0),
            ("own_round", 1),
        ):
            if getattr(self, key) < least:
                raise SubflotError(f"{key} is {getattr(self, key)}", hint=f"at least {least}")
        for key in ("pruning_rates", "client_rates"):
            if not all(0 <= rate < 1 for rate in getattr(self, key)):
                raise SubflotError(
                    f"{key} is {list(getattr(self, key))}",
                    hint="a rate is the share of channels removed and lies in [0, 1)",
                )
        if self.measure_on not in ("test", "validation"):
            raise UnknownName("measure_on", self.measure_on, ("test", "validation"), "subflot run")
        if self.measure_on == "validation" and not self.validation_share:
            raise SubflotError(
                "there are no validation examples to measure on", hint="set validation_share=0.2"
            )
        check_own(self.models, self.own_epochs, self.owner_share, self.own_round)
        if self.has_own:
            check_taken(self.method)

    @property
    def has_own(self) -> bool:
        """Whether some clients bring a model of their own."""
        return bool(self.models or self.own_epochs)

    @property
    def method(self) -> Algorithm:
        """The method with its settings."""
        return make(self.algorithm, **self.algorithm_settings)

    @property
    def local(self) -> LocalTraining:
        """How clients train."""
        return LocalTraining(**{f.name: getattr(self, f.name) for f in fields(LocalTraining)})

    def flat(self) -> dict[str, Any]:
        """All settings by name, as `of` takes them."""
        nested = asdict(self)
        parts = [nested.pop(f"{part}_settings") for part in PARTS]
        if not self.model_digest:  # A bundled network has none.
            del nested["model_digest"]
        if not self.models:
            del nested["models"], nested["models_digest"]
        return {**nested, **{key: value for part in parts for key, value in part.items()}}

    @property
    def run_id(self) -> str:
        """A name that tells runs of different settings apart.

        It depends on what differs from the defaults, so that a new setting renames no run; a new
        default raises RESULTS_VERSION, or the version of the one method that it concerns.
        """
        return self.named(ALGORITHMS[self.algorithm].version)

    def named(self, version: int) -> str:
        """The name of the same run by a version of its method."""
        named = {part: getattr(self, part) for part in PARTS}
        if self.model_digest:
            named["model_digest"] = self.model_digest
        if self.models:
            named |= {"models": self.models, "models_digest": self.models_digest}
        usual = RunConfig.of(**named).flat()
        own = {k: v for k, v in self.flat().items() if k != "name" and v != usual[k]} | named
        if version != 1:
            own["algorithm_version"] = version
        text = json.dumps([RESULTS_VERSION, own], sort_keys=True, default=list)
        return f"{self.algorithm}-s{self.seed}-{sha256(text.encode()).hexdigest()[:10]}"

    def toml(self) -> str:
        """Write the settings as TOML, which `read_config` reads."""
        # TOML has no word for None, which can only be a default.
        given = {key: value for key, value in self.flat().items() if value is not None}
        lines = [f"{key} = {toml_value(value)}" for key, value in given.items()]
        return "\n".join([f"# results version {RESULTS_VERSION}", *lines]) + "\n"


def model_settings(build: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a bundled network, with defaults."""
    taken = build.keywords if isinstance(build, partial) else {}
    return {
        name: parameter.default
        for name, parameter in inspect.signature(build).parameters.items()
        if name != "num_classes" and name not in taken
    }


def grid(settings: Mapping[str, Any]) -> list[RunConfig]:
    """Make the runs of a file.

    `algorithm` and `seed` may be lists, and `[for.NAME]` sets what holds for one method alone. A
    setting that belongs to some of the methods is given to those.
    """
    flat = dict(settings)
    special = flat.pop("for", {})
    algorithms = _listed("algorithm", flat.pop("algorithm", RunConfig.algorithm), str)
    seeds = _listed("seed", flat.pop("seed", RunConfig.seed), int)
    if not isinstance(special, dict) or not all(isinstance(t, dict) for t in special.values()):
        raise SubflotError(f"for is {special!r}", hint="write [for.METHOD] and its settings below")
    for name in {*algorithms, *special}:
        if name not in ALGORITHMS:
            raise UnknownName("algorithm", name, ALGORITHMS, "subflot algorithms")
    some = {key for name in algorithms for key in _defaults(ALGORITHMS[name])}
    runs = []
    for seed in seeds:
        for name in algorithms:
            own = _defaults(ALGORITHMS[name])
            mine = {key: value for key, value in flat.items() if key in own or key not in some}
            runs.append(
                RunConfig.of(**{**mine, **special.get(name, {})}, algorithm=name, seed=seed)
            )
    return runs


def _listed(key: str, value: Any, kind: type) -> list[Any]:
    found = [value] if isinstance(value, kind) else value
    if not isinstance(found, list | tuple) or not all(isinstance(one, kind) for one in found):
        raise SubflotError(f"{key} is {value!r}", hint=f"one of type {kind.__name__}, or a list")
    return list(found)


def parse(pairs: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` as written on the command line; values as in TOML, quotes may be left out.

    Example:
        >>> parse(["rounds=3", "algorithm=fedavg,local", "pruning_rates=[0, 0.5]"])
        {'rounds': 3, 'algorithm': ['fedavg', 'local'], 'pruning_rates': [0, 0.5]}
    """
    import tomllib

    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise SubflotError(f"`{pair}` sets nothing", hint="write key=value, as in rounds=3")
        try:
            settings[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = text.split(",") if "," in text else text
    return settings


def _defaults(kind: type) -> dict[str, Any]:
    return {f.name: f.default for f in fields(kind)}


def _has_words(kind: type, key: str) -> bool:
    """Whether a setting of a method is a number that has words for some values, such as `auto`."""
    kinds = get_args(get_type_hints(kind)[key])
    return float in kinds and any(get_origin(one) is Literal for one in kinds)


def _typed(key: str, value: Any, default: Any) -> Any:
    """Check that a value is of the kind of the default; whole numbers are fractions too."""
    if isinstance(default, tuple) and isinstance(value, str | int | float):
        value = (value,)
    if isinstance(default, tuple) and isinstance(value, Sequence):
        return tuple(_typed(key, one, default[0] if default else 0.0) for one in value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    is_open = default is inspect.Parameter.empty or default is None
    if is_open or type(value) is type(default):
        return value
    raise SubflotError(
        f"{key} is {value!r}", hint=f"it is of type {type(default).__name__}, as in {default!r}"
    )


def config_of(folder: Path, *, is_trusted: bool = False) -> RunConfig:
    """Read the settings of a run, and see that they are those that it was begun with.

    A folder that is called as runs are must hold the run of that name. Who sends a folder chooses
    the code that it names as well as what vouches for it, so that only the user can say yes.

    Args:
        folder: of the run.
        is_trusted: code that the settings name as the model may be run.
    """
    there = RunRecord(folder).config
    named = str(there.get("model", ""))
    if ":" in named and not is_trusted:  # Before anything of it is looked for.
        raise SubflotError(
            f"the run in {folder} would run code: its model is {named}",
            hint="read that code if the folder may come from somebody else; --trust runs it",
        )
    config = RunConfig.of(**there)
    name = folder.resolve().name
    # Before files of models had digests, the name did not depend on what they say.
    is_old = ":" in config.model and "model_digest" not in there
    now = ALGORITHMS[config.algorithm].version
    if earlier := [v for v in range(1, now) if config.named(v) == name]:
        raise SubflotError(
            f"{folder} was run with version {earlier[0]} of {config.algorithm}, which is at {now}",
            hint="`subflot run` runs it anew; what was recorded can still be reported",
        )
    if RUN_ID.fullmatch(name) and name != config.run_id and not is_old:
        raise SubflotError(
            f"{folder / CONFIG} holds the settings of {config.run_id}, and not of the run that its "
            "folder is called after: it may have lost lines",
            hint="restore the file; other settings are another run, which `subflot run` begins",
        )
    return config


def read_config(path: Path) -> dict[str, Any]:
    """Read a TOML file of settings."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SubflotError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SubflotError(
            f"{path} is not UTF-8: {error.reason} in byte {error.start}",
            hint="save it as UTF-8 in your editor",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SubflotError(f"{path} is not TOML: {error}") from None
