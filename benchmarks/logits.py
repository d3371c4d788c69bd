"""How much of what a network says is left when it is cut: by position, and by transport.

A network as training starts is cut at each pruning rate, and the spread of its logits over a
client's examples is compared with that of the cut by position. `balanced` plans (the printed rule)
average the weights of the channels that they merge, `partial` ones choose channels. Normalisation
takes its statistics from the examples, as when models are measured.
"""

import json
from typing import Any

import torch
from torch import Tensor

from subflot import RunConfig, build, take
from subflot.channels.keep import prefix
from subflot.experiments.runner import assemble
from subflot.task import Task
from subflot.transport import align
from subflot.weights import Weights

CASES = {
    "harcnn": RunConfig.of(data="har", model="harcnn", partition="by_group"),
    "vgg11": RunConfig.of(data="cifar10", model="vgg11", partition="iid", num_clients=10),
}
RATES = [0.25, 0.5, 0.75]
EXAMPLES = 64


@torch.no_grad()
def spread(task: Task, weights: Weights, inputs: Tensor) -> float:
    """Standard deviation over examples of the logits of a network with these weights."""
    logits: Tensor = build(task.template, task.channels, weights).train()(inputs)
    return float((logits - logits.mean(0)).square().mean().sqrt())


def measure(name: str) -> list[dict[str, Any]]:
    """Cut one network at every rate."""
    task, data, _ = assemble(CASES[name])
    inputs = data.train(0).inputs[:EXAMPLES]
    rows = []
    for rate in RATES:
        part = take(task.initial, task.channels, prefix(task.channels, rate))
        found = {"position": spread(task, part, inputs)}
        for plan in ("balanced", "partial"):
            cut = align(task.initial, part, task.channels, plan=plan).weights
            found[plan] = spread(task, cut, inputs)
        rows.append({"model": name, "pruning_rate": rate, **found})
    return rows


def main() -> None:
    """Measure every network and print it."""
    rows = []
    for name in CASES:
        for row in measure(name):
            rows.append(row)
            balanced, partial = (row[plan] / row["position"] for plan in ("balanced", "partial"))
            print(
                f"{name:8} rate {row['pruning_rate']:<5} spread of logits against the cut by "
                f"position: balanced {balanced:.2g}, partial {partial:.2g}",
                flush=True,
            )
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
