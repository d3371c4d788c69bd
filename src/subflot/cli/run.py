"""`subflot run`, `subflot resume` and `subflot algorithms`."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from subflot.algorithms import ALGORITHMS
from subflot.cli.show import Json, Trust, show, show_json
from subflot.cli.summary import differences, summary_markdown, summary_table
from subflot.cli.watch import Watch, progress
from subflot.data.sets import require
from subflot.errors import SubflotError, UnknownName
from subflot.experiments.batch import run_all
from subflot.experiments.config import RunConfig, config_of, grid, parse, read_config
from subflot.experiments.engines import ENGINES, engine_in, engine_of, without_flower
from subflot.experiments.runner import Engine, run
from subflot.experiments.track import tracker
from subflot.experiments.tuning import Choice, Tuning
from subflot.reporting.choices import scores, told
from subflot.results import RunRecord
from subflot.simulation import Round

Workers = Annotated[
    int | None, typer.Option(help="Processes, of one thread each; by default one per core.", min=1)
]


def presets() -> list[str]:
    """Name the settings that come with the package."""
    found = files("subflot.experiments").joinpath("presets").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in found)


def read_settings(target: str) -> dict[str, Any]:
    """Read a file of settings, the user's or one of ours."""
    if target.endswith(".toml"):
        return read_config(Path(target))
    if target not in presets():
        raise UnknownName("preset", target, presets(), "subflot run --help")
    return read_config(Path(str(files("subflot.experiments") / "presets" / f"{target}.toml")))


def run_command(
    target: Annotated[
        str, typer.Argument(help=f"A file of settings, .toml, or one of: {', '.join(presets())}.")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: of the run, the method, the partition, the data or the model.",
        ),
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="Methods, separated by commas, or `all`.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    workers: Workers = None,
    engine: Annotated[
        str, typer.Option(metavar="|".join(ENGINES), help="What runs the clients.")
    ] = ENGINES[0],
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("runs"),
    force: Annotated[
        bool, typer.Option("--force", help="Start anew, also what is finished.")
    ] = False,
    track: Annotated[
        str | None, typer.Option(metavar="tensorboard|mlflow", help="Also draw curves there.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and their settings, run none.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run what a file describes, or what is left of it; what is finished is not run again."""
    settings, table = without_flower({**read_settings(target), **parse(sets or ())})
    chosen = engine_of(engine, table)
    if algorithms:
        names = list(ALGORITHMS) if algorithms == "all" else algorithms.split(",")
        settings["algorithm"] = names
    if seeds:
        try:
            settings["seed"] = [int(seed) for seed in seeds.split(",")]
        except ValueError:
            raise SubflotError(f"`{seeds}` are no seeds", hint="write them as 0,1,2") from None
    tune = settings.pop("tune", None)
    configs = grid(settings)
    tuning = None if tune is None else Tuning.of(tune, held=_set_by_hand(settings))
    if dry_run:
        _show_plan(configs, tuning, out)
        return
    for config in configs:
        require(config.data, **config.data_settings)  # Before a method is blamed for it.
    failures: dict[str, str] = {}
    choices: list[Choice] = []
    if tuning:
        configs, choices = _tuned(configs, tuning, out, workers)
        hopeless = [choice for choice in choices if choice.learning_rate is None]
        failures = {one.algorithm: f"no learning rate works: {one.reason}" for one in hopeless}
    lines = told(choice.told() for choice in choices)
    jobs = [(config, _folder(out, config)) for config in configs]
    records, failed = _run_all(jobs, workers, force, track, chosen)
    failures |= failed
    if as_json:
        shown = [{"run": str(r.folder), **r.config, **r.summary()} for r in records]
        base, paired = differences(records)
        apart = {name: one.fields() for name, one in paired.items()}
        trials = [one.told() for one in choices]
        show_json(
            {
                "runs": shown,
                "reference": base,
                "paired": apart,
                "failures": failures,
                "choices": trials,
            }
        )
    elif markdown:
        sys.stdout.write("\n".join([summary_markdown(records), *(f"- {line}\n" for line in lines)]))
    elif records:
        show(summary_table(records, f"{configs[0].name}: last round, means over clients"))
        for line in lines:
            show(line)
    if records:
        _say(f"records: {_common(records)}")
    if failures:
        for name, reason in failures.items():
            _say(f"failed: {name}: {reason}")
        raise typer.Exit(1)


def _folder(out: Path, config: RunConfig) -> Path:
    return out / config.name / config.run_id


def _trials(out: Path, config: RunConfig) -> Path:
    return out / config.name / "trials"


def _set_by_hand(settings: Mapping[str, Any]) -> set[str]:
    """Name what a file or an option sets, for some methods or for all."""
    special = settings.get("for", {})
    return {*settings, *(key for table in special.values() for key in table)}


def _subjects(configs: Sequence[RunConfig]) -> dict[tuple[str, str], RunConfig]:
    """Find the run that settings are searched with: of each method the one with the first seed."""
    found: dict[tuple[str, str], RunConfig] = {}
    for config in configs:
        found.setdefault((config.algorithm, config.name), config)
    return found


def _show_plan(configs: Sequence[RunConfig], tuning: Tuning | None, out: Path) -> None:
    """Show what would be run; settings that trials decide are not known yet."""
    jobs = [(config, _folder(out, config)) for config in configs]
    if tuning:
        folder = _trials(out, configs[0])
        subjects = _subjects(configs).values()
        tried = [tuning.known(config, [folder]) for config in subjects]
        next_ones = [one for _, each in tried for one in each]
        show(
            f"# {tuning.trials} trials of each method decide the settings of {len(configs)} runs; "
            f"{sum(count for count, _ in tried)} are finished"
        )
        jobs = [(one, folder / one.run_id) for one in next_ones] or jobs
    for config, folder in jobs:
        there = "finished" if RunRecord(folder).is_finished else "to run"
        show(f"# {folder} ({there})\n{config.toml()}")


def _tuned(
    configs: Sequence[RunConfig], tuning: Tuning, out: Path, workers: int | None
) -> tuple[list[RunConfig], list[Choice]]:
    """Give each method the settings that do best on validation examples.

    Returns:
        the runs, without those of methods that nothing fits, and what was chosen.
    """
    folder = _trials(out, configs[0])
    with progress() as bar, _saying_how_to_go_on():

        def watched(config: RunConfig) -> Watch:
            title = f"{config.algorithm} trial, learning_rate {config.learning_rate:g}"
            return Watch(title, config.rounds, bar)

        runner = partial(run_all, folder=folder, workers=workers, watched=watched)
        choices = tuning.choose(_subjects(configs), [folder], runner)
    for choice in choices.values():
        _say(f"{choice.algorithm}, on validation examples: {scores(choice.told())}")
    tuned = [
        choices[config.algorithm, config.name].applied(config)
        for config in configs
        if choices[config.algorithm, config.name].learning_rate
    ]
    if not tuned:
        first = next(iter(choices.values()))
        raise SubflotError(f"no learning rate works for {first.algorithm}: {first.reason}")
    return tuned, list(choices.values())


@contextmanager
def _saying_how_to_go_on() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _say("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None


def _run_all(
    jobs: Sequence[tuple[RunConfig, Path]],
    workers: int | None,
    force: bool,
    track: str | None = None,
    engine: Engine | None = None,
) -> tuple[list[RunRecord], dict[str, str]]:
    """Run one after the other; where there are several, one that fails does not stop the others.

    Returns:
        the records of those that finished, and why others failed, by their titles.
    """
    records, failures = [], {}
    with progress() as bar:
        for config, folder in jobs:
            if RunRecord(folder).is_finished and not force:
                _say(f"{folder} is finished; --force runs it again")
            title = config.algorithm + (f" seed {config.seed}" if config.seed else "")
            told: list[Callable[[Round], None]] = [Watch(title, config.rounds, bar)]
            if track:
                told.append(tracker(track, config, folder))

            def tell(done: Round, told: Sequence[Callable[[Round], None]] = tuple(told)) -> None:
                for listener in told:
                    listener(done)

            try:
                records.append(
                    run(config, folder, workers=workers, force=force, on_round=tell, engine=engine)
                )
            except KeyboardInterrupt:
                done = len(RunRecord(folder).rounds)
                _say(f"stopped; {done} of {config.rounds} rounds of {config.algorithm} are saved")
                needed = " --trust" if ":" in config.model else ""
                _say(f"to go on: subflot resume {folder}{needed}")
                raise typer.Exit(130) from None
            except SubflotError as error:
                if len(jobs) == 1:
                    raise
                failures[title] = str(error.args[0]).partition("\n")[0]
                _say(f"{title} failed: {error}")
    return records, failures


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")


def _common(records: Sequence[RunRecord]) -> Path:
    return records[0].folder if len(records) == 1 else records[0].folder.parent


def resume_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a run that was interrupted.")],
    workers: Workers = None,
    trust: Trust = False,
) -> None:
    """Go on with an interrupted run; it ends as if it had never stopped."""
    config = config_of(folder, is_trusted=trust)
    records, _ = _run_all([(config, folder)], workers, False, engine=engine_in(folder))
    show(summary_table(records, f"{config.name}: last round, means over clients"))


def algorithms_command(as_json: Json = False) -> None:
    """List the methods: what they do, their papers, their settings and defaults."""
    if as_json:
        show_json({name: _fields(name) for name in ALGORITHMS})
        return
    table = Table("algorithm", "what it is", "paper", "settings", show_lines=True)
    for name in ALGORITHMS:
        found = _fields(name)
        settings = ", ".join(f"{key}={value}" for key, value in found["settings"].items())
        table.add_row(name, found["about"], found["paper"], settings)
    show(table)


def _fields(name: str) -> Mapping[str, Any]:
    kind = ALGORITHMS[name]
    about = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
    return {
        "about": about,
        "paper": kind.paper,
        "ignores_budgets": kind.ignores_budgets,
        "settings": {field.name: field.default for field in fields(kind)},  # type: ignore[arg-type]
    }
