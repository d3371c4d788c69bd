"""What the report page shows of runs: small enough to embed, and drawn from records alone."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from subflot.results import RunRecord

MOST_POINTS = 500
"""Points of a curve; more rounds than these are drawn at even distances, first and last among
them."""
MOST_STEPS = 60
"""Rounds of which a page shows how much every layer's plan moved."""
DIGITS = 7
"""Decimals of the points of a curve. Summaries are embedded as they are."""
COMPARED = ("trained", "worst", "extracted", "global", "parameters", "multiply_adds", "seconds")
SAME_CLIENTS = ("data", "partition", "num_clients", "seed", "measure_on")
"""Settings in which runs agree if client 3 of one can be compared with client 3 of another."""
LAST = ("pruning_rate", "num_examples", "num_test", "parameters", "multiply_adds")
"""Of a client, what is shown as it was when it last took part."""


def digest(records: Sequence[RunRecord], root: Path) -> dict[str, Any]:
    """Return runs, groups of runs that differ in their seed alone, settings and environments.

    Args:
        records: of runs whose files can be read, finished or not.
        root: the folder that their paths are shown from.
    """
    configs = [record.config for record in records]
    names = labels(configs, [_path(record, root) for record in records])
    kinds = experiments(configs)
    groups = list(dict.fromkeys(map(_group, configs)))
    machines = [record.environment for record in records]
    environments = [json.loads(text) for text in dict.fromkeys(map(json.dumps, machines))]
    odd = differing(configs)
    runs = []
    for record, config, experiment, (group_name, name), machine in zip(
        records, configs, kinds, names, machines, strict=True
    ):
        runs.append(
            {
                "label": name,
                "group_label": group_name,
                "group": groups.index(_group(config)),
                "path": _path(record, root),
                "experiment": experiment,
                "algorithm": str(config.get("algorithm", "")),
                "seed": config.get("seed"),
                "rounds": config.get("rounds"),
                "is_finished": record.is_finished,
                "same_clients": [config.get(key) for key in SAME_CLIENTS],
                "summary": _summary(record),
                "series": series(record),
                "moved": moved(record),
                "clients": clients(record),
                "settings": {key: config.get(key) for key in odd},
                "ignores_budgets": ignores_budgets(record),
                "environment": environments.index(machine),
            }
        )
    return {
        "runs": runs,
        "groups": [_over_seeds([r for r in runs if r["group"] == g]) for g in range(len(groups))],
        "common": {key: value for key, value in configs[0].items() if key not in odd},
        "environments": environments,
    }


def experiments(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name what each run belongs to: runs of one name and data set; trials are apart.

    Example:
        >>> experiments([{"name": "har"}, {"name": "har", "measure_on": "validation"}])
        ['har', 'har, trials']
    """
    data: dict[Any, set[Any]] = {}
    for config in configs:
        data.setdefault(config.get("name"), set()).add(config.get("data"))
    found = []
    for config in configs:
        parts = [config.get("name", "")]
        if len(data[config.get("name")]) > 1:
            parts.append(config.get("data"))
        if config.get("measure_on") == "validation":
            parts.append("trials")
        found.append(", ".join(map(str, parts)))
    return found


def labels(configs: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> list[tuple[str, str]]:
    """Name the group and the run of each config by what tells it apart from the others.

    Example:
        >>> runs = [{"algorithm": "fedavg", "seed": 0}, {"algorithm": "fedavg", "seed": 1}]
        >>> labels(runs, ["a", "b"])
        [('fedavg', 'fedavg, seed 0'), ('fedavg', 'fedavg, seed 1')]
    """
    kinds = experiments(configs)
    of_method: dict[tuple[str, Any], list[Mapping[str, Any]]] = {}
    for kind, config in zip(kinds, configs, strict=True):
        of_method.setdefault((kind, config.get("algorithm")), []).append(config)
    groups, runs = [], []
    for kind, config in zip(kinds, configs, strict=True):
        kin = of_method[kind, config.get("algorithm")]
        odd = [key for key in differing(kin) if key != "seed"]
        parts = [
            str(config.get("algorithm", "run")),
            *(f"{k}={_short(config[k])}" for k in odd if k in config),
        ]
        groups.append((f"{kind}: " if len(set(kinds)) > 1 else "") + ", ".join(parts))
        seeds = {c.get("seed") for c in kin if _group(c) == _group(config)}
        runs.append(groups[-1] + (f", seed {config.get('seed')}" if len(seeds) > 1 else ""))
    return [
        (group, name if runs.count(name) == 1 else f"{name} ({path})")
        for group, name, path in zip(groups, runs, paths, strict=True)
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the settings in which not all configs agree."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if any(c.get(key) != configs[0].get(key) for c in configs)]


def series(record: RunRecord) -> dict[str, list[float | None]]:
    """Return the curves of a run as columns: one point for every round that was measured."""
    measured = [line["round"] for line in record.rounds if line["trained"] or line["global"]]
    drawn = set(_thinned(measured or [line["round"] for line in record.rounds], MOST_POINTS))
    seconds = {line["round"]: line["seconds"] for line in record.timing}
    sent, spent = 0, 0.0
    rows = []
    for line in record.rounds:
        sent += line["bytes_down"] + line["bytes_up"]
        spent += seconds.get(line["round"], 0.0)
        if line["round"] not in drawn:
            continue
        row = {
            "round": line["round"],
            "trained": line["trained"] and line["trained"]["mean"],
            "worst": line["trained"] and line["trained"]["worst"],
            "extracted": line["extracted"] and line["extracted"]["mean"],
            "global": line["global"] and line["global"]["accuracy"],
            "bytes": sent,
            "seconds": spent,
        }
        for name in ("delta_p", "delta_ot"):
            values = [v for v in line["clients"].get(name, ()) if v is not None]
            row[name] = fmean(values) if values else None
        rows.append(row)
    names = rows[0] if rows else ()
    columns = {name: [_rounded(row[name]) for row in rows] for name in names}
    return {name: column for name, column in columns.items() if any(v is not None for v in column)}


def moved(record: RunRecord) -> dict[str, list[Any]]:
    """Return how much the plan of each layer moved: a row of shares per layer, one per round."""
    told = {line["round"]: line.get("layers", {}).get("moved") for line in record.rounds}
    rounds = _thinned([number for number, shares in told.items() if shares], MOST_STEPS)
    layers = list(dict.fromkeys(layer for number in rounds for layer in told[number]))
    shares = [[_rounded(told[number].get(layer)) for number in rounds] for layer in layers]
    return {"layers": layers, "rounds": list(rounds), "shares": shares}


def clients(record: RunRecord) -> dict[str, list[Any]]:
    """Return every client that took part, as columns: its last values, and sums over rounds."""
    found: dict[int, dict[str, Any]] = {}
    for line in record.rounds:
        for row in _rows(line["clients"]):
            sums = {"bytes": 0, "rounds": 0, "rejected": 0, "trained": None, "extracted": None}
            one = found.setdefault(row["client"], {"client": row["client"], **sums})
            one.update({key: row.get(key) for key in LAST if row.get(key) is not None})
            for kind in ("trained", "extracted"):
                if row.get("num_test") and row.get(f"{kind}_correct") is not None:
                    one[kind] = row[f"{kind}_correct"] / row["num_test"]
            one["bytes"] += (row.get("bytes_down") or 0) + (row.get("bytes_up") or 0)
            one["rounds"] += 1
            one["rejected"] += bool(row.get("fault"))
    ordered = [found[client] for client in sorted(found)]
    names = dict.fromkeys(name for one in ordered for name in one)
    return {name: [one.get(name) for one in ordered] for name in names}


def channel_map(record: RunRecord) -> dict[str, Any] | None:
    """Return the channel map of a run's model, equal for runs of one model; None if not noted."""
    found = record.channels
    if found is None:
        return None
    keys = ("name", "channels", "kept", "num_tensors", "frozen")
    return {
        **{key: found[key] for key in ("model", "data", "rates")},
        "spaces": [{key: one[key] for key in keys} for one in found["spaces"]],
        "tensors": [[name, shape, axes] for name, shape, axes in found["tensors"]],
    }


def plans(record: RunRecord) -> list[dict[str, Any]]:
    """Return the plans that a run noted, of one client per width."""
    keys = ("layer", "shape", "grid", "cells", "moved")
    return [
        {
            **{key: one[key] for key in ("client", "pruning_rate", "round", "num_layers")},
            "layers": [{key: layer[key] for key in keys} for layer in one["layers"]],
        }
        for one in record.plans
    ]


def ignores_budgets(record: RunRecord) -> bool:
    """Whether every client trains the full model, whatever it can hold.

    A run that did not note it shows it: its clients have as many parameters as one that holds all.
    """
    if record.channels:
        return bool(record.channels["ignores_budgets"])
    rows = [row for line in record.rounds for row in _rows(line["clients"])]
    rates, sizes = ({row.get(key) for row in rows} for key in ("pruning_rate", "parameters"))
    return len(rates) > 1 and 0.0 in rates and len(sizes) == 1


def _rows(columns: Mapping[str, Sequence[Any]]) -> Iterable[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _summary(record: RunRecord) -> dict[str, Any]:
    found = record.summary()
    if "bytes_down" in found:
        found["bytes"] = found["bytes_down"] + found["bytes_up"]
    return found


def _over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum up runs that differ in their seed alone; what is unfinished does not count."""
    finished = [run["summary"] for run in runs if run["is_finished"]]
    found: dict[str, Any] = {
        "label": runs[0]["group_label"],
        "algorithm": runs[0]["algorithm"],
        "ignores_budgets": any(run["ignores_budgets"] for run in runs),
        "experiment": runs[0]["experiment"],
        "num_runs": len(runs),
        "num_finished": len(finished),
    }
    for key in (*COMPARED, "bytes"):
        values = [one[key] for one in finished if one.get(key) is not None]
        found[key] = fmean(values) if values else None
        found[f"{key}_spread"] = stdev(values) if len(values) > 1 else None
    return found


def _thinned(rounds: Sequence[int], most: int) -> Sequence[int]:
    if len(rounds) <= most:
        return rounds
    last = len(rounds) - 1
    return [rounds[round(i * last / (most - 1))] for i in range(most)]


def _rounded(value: float | None) -> float | None:
    return round(value, DIGITS) if isinstance(value, float) else value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text if len(text) <= 30 else text[:29] + "…"


def _group(config: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "seed"}, sort_keys=True, default=str)


def _path(record: RunRecord, root: Path) -> str:
    return record.folder.relative_to(root).as_posix()
