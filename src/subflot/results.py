"""What a run leaves on disk, read without torch: every table and figure is drawn from this."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError
from subflot.texts import checksum

CONFIG, METRICS, TIMING = "config.toml", "metrics.jsonl", "timing.jsonl"
SUMMARY, ENVIRONMENT = "summary.json", "environment.json"
MANIFEST, BEGUN = "manifest.json", "begun.json"
CHANNELS, PLANS = "channels.json", "plans.json"
"""What a run notes of its model; older runs have none."""
FAILED = "failed.txt"
"""Why a run did not finish; it goes when the run does."""
FLOWER = "flower.toml"
"""Settings of a run on Flower; other runs have none."""
LOGS = (METRICS, TIMING)
FORMAT = 2
"""Of the manifest; in format 1 it had no checksums."""
SENSELESS = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError, OSError),
)
"""What reading a record leads to that does not hold what records hold."""
RESTORE = "restore the file, or run again with --force"


@dataclass(frozen=True)
class RunRecord:
    """The folder of a run, finished or not."""

    folder: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every setting that can change a number."""
        path = self.folder / CONFIG
        try:
            return tomllib.loads(read_checked(path, self._noted).decode())
        except FileNotFoundError:
            raise SubflotError(
                f"{self.folder} is not the folder of a run", hint=f"it has no {CONFIG}"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SubflotError(f"{path} is damaged: {error}", hint=RESTORE) from None

    @cached_property
    def environment(self) -> dict[str, Any]:
        """What the run was made with; nothing if it does not say."""
        try:
            return dict(self._json(ENVIRONMENT) or {})
        except (ValueError, TypeError) as error:
            path = self.folder / ENVIRONMENT
            raise SubflotError(f"{path} is damaged: {error}", hint=RESTORE) from None

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One entry per round: accuracies as shares, clients as columns."""
        return _lines(self.folder / METRICS, self._noted)

    @cached_property
    def timing(self) -> list[dict[str, Any]]:
        """Seconds per round, and by phase."""
        return _lines(self.folder / TIMING, self._noted)

    @cached_property
    def _noted(self) -> Mapping[str, Any]:
        """What is known of the files: from the manifest, and without one from the summary."""
        found = read_manifest(self.folder)
        if found is not None:
            # Of a run that was cut off, only what its last whole round counts.
            return {**found, "logs": {**dict.fromkeys(LOGS, 0), **found["logs"]}}
        try:
            summary = json.loads((self.folder / SUMMARY).read_bytes())
            return {"checksums": summary.get("checksums", {})}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            path = self.folder / SUMMARY
            raise SubflotError(f"{path} is damaged: {error}", hint=RESTORE) from None

    def checksums(self) -> dict[str, str]:
        """Sum up each file of the record that outlives the models, by which damage shows."""
        files = (self.folder / name for name in (CONFIG, ENVIRONMENT, CHANNELS, PLANS, *LOGS))
        return {
            path.name: checksum(read_checked(path, self._noted)) for path in files if path.is_file()
        }

    @cached_property
    def channels(self) -> dict[str, Any] | None:
        """The channel map of the model, and whether the method ignores budgets, if it is noted."""
        found: dict[str, Any] | None = self._json(CHANNELS)
        return found

    @cached_property
    def plans(self) -> list[dict[str, Any]]:
        """The transport plans of one client per width at the end, as far as they are noted."""
        found: list[dict[str, Any]] = self._json(PLANS) or []
        return found

    def _json(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(read_checked(path, self._noted))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SubflotError(f"{path} is damaged: {error}", hint=RESTORE) from None

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are there."""
        return (self.folder / SUMMARY).is_file()

    @property
    def failure(self) -> str:
        """Why it failed when it was last run; empty if it did not."""
        path = self.folder / FAILED
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""

    def summary(self) -> dict[str, Any]:
        """Sum a run up: the last round, the best round beside it, and what it cost."""
        if not self.rounds:
            return {"round": 0}
        measured = [line for line in self.rounds if line["trained"]]
        best = max(measured, key=lambda line: line["trained"]["mean"], default=None)
        last = measured[-1] if measured else self.rounds[-1]
        latest = self.client_accuracies()
        return {
            "round": self.rounds[-1]["round"],
            "trained": sum(latest.values()) / len(latest) if latest else None,
            "worst": min(latest.values()) if latest else None,
            "extracted": last["extracted"] and last["extracted"]["mean"],
            "global": last["global"] and last["global"]["accuracy"],
            "best_round": best and best["round"],
            "best_trained": best and best["trained"]["mean"],
            "parameters": self._mean("parameters"),
            "multiply_adds": self._mean("multiply_adds"),
            "bytes_down": sum(line["bytes_down"] for line in self.rounds),
            "bytes_up": sum(line["bytes_up"] for line in self.rounds),
            "num_rejected": sum(line["num_rejected"] for line in self.rounds),
            "seconds": sum(line["seconds"] for line in self.timing),
            "phases": self._phases(),
        }

    def client_accuracies(self, kind: str = "trained") -> dict[int, float]:
        """Give each client's accuracy when it last took part and was measured.

        Args:
            kind: `trained`, or `extracted` for the model as the client received it.
        """
        found: dict[int, float] = {}
        for line in self.rounds:
            clients = line["clients"]
            if f"{kind}_correct" not in clients:
                continue
            columns = (clients["client"], clients[f"{kind}_correct"], clients["num_test"])
            for client, correct, count in zip(*columns, strict=True):
                if count and correct is not None:
                    found[client] = correct / count
        return found

    def _mean(self, column: str) -> float:
        values = [value for line in self.rounds for value in line["clients"].get(column, ())]
        return sum(values) / len(values) if values else 0.0

    def _phases(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for line in self.timing:
            for phase, seconds in line["phases"].items():
                total[phase] = total.get(phase, 0.0) + seconds
        return total


def find_run(run_id: str, folders: Sequence[Path]) -> RunRecord:
    """Find a run by its name: where it is finished, or else in the first of the folders."""
    found = [RunRecord(folder / run_id) for folder in folders]
    return next((record for record in found if record.is_finished), found[0])


def find_runs(folder: Path) -> Iterator[RunRecord]:
    """Find the runs below a folder, in the order of their names."""
    for path in sorted(folder.rglob(CONFIG)):
        yield RunRecord(path.parent)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read which round of a run is whole, and what its files are; None if nothing says so."""
    path = folder / MANIFEST
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        number = found.pop("format")
        if number not in range(1, FORMAT + 1):
            raise SubflotError(
                f"{path} has format {number}, this version reads 1 to {FORMAT}",
                hint="finish the run with the version that began it, or start it anew",
            )
        known = found.pop("checksum") if number > 1 else None
        if known not in (None, checksum(json.dumps(found).encode())):
            raise ValueError("its checksum is another")
        found.setdefault("logs", {}), found.setdefault("checksums", {})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SubflotError(f"{path} is damaged: {error}", hint=RESTORE) from None
    return found


def manifest_text(found: Mapping[str, Any]) -> str:
    """Write what `read_manifest` reads."""
    return json.dumps({"format": FORMAT, **found, "checksum": checksum(json.dumps(found).encode())})


def read_checked(path: Path, noted: Mapping[str, Any]) -> bytes:
    """Read what counts of a file of a run; one that is not as it was written is an error.

    Args:
        path: the file.
        noted: what the manifest says of the run's files; of older ones it says less.
    """
    length, known = noted.get("logs", {}).get(path.name), noted.get("checksums", {}).get(path.name)
    data = path.read_bytes()[:length]
    if length is not None and len(data) < length:
        raise SubflotError(f"{path} is shorter than the {length} bytes it had", hint=RESTORE)
    if known is not None and known != (found := checksum(data)):
        raise SubflotError(
            f"{path} is damaged: its checksum is {found}, and was {known}", hint=RESTORE
        )
    return data


def _lines(path: Path, noted: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in read_checked(path, noted).splitlines()]
    except ValueError as error:
        raise SubflotError(f"{path} is damaged: {error}", hint=RESTORE) from None
