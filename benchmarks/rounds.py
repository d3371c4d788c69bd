"""How many rounds the scale `reduced` needs: FedAvg after its rounds, and after twice as many.

    python benchmarks/rounds.py cifar10 har      # runs what is missing of these columns

Without names nothing is run, and what is on record in results/reduced is shown. The learning rate
is the best of 0.03, 0.1 and 0.3 after ten rounds on validation examples.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from subflot import RunConfig
from subflot.experiments.batch import run_all
from subflot.experiments.tuning import Choice, Tuning
from subflot.paper.grids import Column, Row, tasks
from subflot.paper.plan import Planned, subjects
from subflot.paper.scales import Terms
from subflot.results import RunRecord, find_run

FOLDER = Path(__file__).parents[1] / "results" / "reduced"
TUNING = Tuning(trials=3, rounds=10)
ROW = "fedavg"


def wanted(column: str) -> RunConfig | None:
    """Return the run of twice the rounds, if the data are here; its learning rate is to be set."""
    task = tasks()[column]
    run = Planned(Row(ROW, ROW, ROW), Column(task.name, task.title, task), None)
    (found,) = subjects([run], Terms("reduced", "searched")).values()
    config = found.config
    return replace(config, name=FOLDER.name, rounds=2 * config.rounds) if config else None


def choose(column: str, config: RunConfig, *, is_run: bool) -> Choice:
    """Choose the learning rate from the trials on record; run those that are missing if asked."""

    def runner(configs: Sequence[RunConfig]) -> Mapping[str, str]:
        return run_all(configs, FOLDER / "trials", workers=1)

    pair = (ROW, column)
    return TUNING.choose({pair: config}, [FOLDER / "trials"], runner if is_run else None)[pair]


def compare(record: RunRecord) -> dict[str, Any]:
    """Put what the clients' and the global model had at half of a run beside what they had last."""
    rows = {row["round"]: row for row in record.rounds if row.get("trained")}
    last = max(rows)
    return {
        "rounds": last // 2,
        "learning_rate": record.config["learning_rate"],
        "trained": [round(100 * rows[at]["trained"]["mean"], 1) for at in (last // 2, last)],
        "global": [round(100 * rows[at]["global"]["accuracy"], 1) for at in (last // 2, last)],
    }


def main() -> None:
    """Run the columns that are named; show every column that is on record."""
    found = {}
    for column in tasks():
        config = wanted(column)
        if config is None:
            continue
        choice = choose(column, config, is_run=column in sys.argv[1:])
        if not choice.is_complete:
            continue
        config = choice.applied(config)
        if column in sys.argv[1:]:
            run_all([config], FOLDER, workers=1)
        record = find_run(config.run_id, [FOLDER])
        if record.is_finished:
            found[column] = compare(record)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
