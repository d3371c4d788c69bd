"""Memory of the process that runs the server, with 200 and with 2,000 clients.

    SUBFLOT_DATA=... python benchmarks/memory.py [method]

One round of SubFLOT with HARCNN models in which every client takes part, two workers, history on
disk. Each case runs in a process of its own, whose largest resident memory is read at the end. It
needs about 8 GB of disk for the history of 2,000 clients while it runs.
"""

import json
import subprocess
import sys
from pathlib import Path

CASES = (200, 2000)


def measure(num_clients: int, method: str) -> None:
    """Run one round and print the largest resident memory in MB."""
    from subflot import RunConfig
    from subflot.experiments.runner import assemble
    from subflot.simulation import simulate

    config = RunConfig.of(
        algorithm=method,
        data="har",
        model="harcnn",
        partition="iid",
        num_clients=num_clients,
        rounds=1,
        epochs=1,
    )
    task, data, roster = assemble(config)
    for _ in simulate(config.method, task, data, roster, rounds=1, workers=2, evaluate_every=1):
        pass
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM"))
    print(int(peak.split()[1]) / 1024)


def main() -> None:
    """Measure both cases."""
    method = sys.argv[1] if len(sys.argv) > 1 else "subflot"
    found = {}
    for num_clients in CASES:
        command = [sys.executable, __file__, "--measure", str(num_clients), method]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[f"parent_mb_{num_clients}"] = float(done.stdout.split()[-1])
        print(f"{num_clients:5} clients: {found[f'parent_mb_{num_clients}']:,.0f} MB", flush=True)
    print(json.dumps({**found, "growth": found["parent_mb_2000"] / found["parent_mb_200"]}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(int(sys.argv[2]), sys.argv[3])
    else:
        main()
