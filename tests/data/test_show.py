"""Counts per client and class: as values, as a table, as a picture and on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import Command
from matplotlib.image import imread
from rich.console import Console

from subflot.cli.division import division_table
from subflot.data.dataset import Dataset
from subflot.data.federated import FederatedData, federate
from subflot.data.show import Division, describe, draw
from subflot.data.split import Shares
from subflot.errors import SubflotError

# Two clients: one has a, a, b and the other b, c; all of group `x` and `y` respectively.
SMALL = Dataset(
    "small",
    np.zeros((5, 1)),
    np.array([0, 0, 1, 1, 2]),
    ("a", "b", "c"),
    np.array([0, 0, 0, 1, 1]),
    ("x", "y"),
)


def shares(train: list[int], validation: list[int], test: list[int]) -> Shares:
    return Shares(*(np.array(part, dtype=np.int64) for part in (train, validation, test)))


DIVIDED = FederatedData(SMALL, (shares([0, 2], [], [1]), shares([3], [4], [])))


def rendered(division: Division, width: int = 100) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(division_table(division))
    return capture.get()


def test_what_clients_hold_is_counted_by_class_part_and_group() -> None:
    division = describe(DIVIDED)
    assert division.counts.tolist() == [[2, 1, 0], [0, 1, 1]]
    assert (division.num_train, division.num_validation) == ((2, 1), (0, 1))
    assert (division.num_test, division.groups) == ((1, 0), ("x", "y"))


def test_groups_are_told_only_where_every_client_has_one() -> None:
    mixed = FederatedData(SMALL, (shares([0, 3], [], []), shares([1], [], [])))
    assert describe(mixed).groups == ()


def test_json_has_an_entry_per_client_without_empty_classes() -> None:
    assert describe(DIVIDED).as_json() == {
        "name": "small",
        "classes": ["a", "b", "c"],
        "clients": [
            {
                "client": 0,
                "group": "x",
                "examples": 3,
                "train": 2,
                "validation": 0,
                "test": 1,
                "classes": {"a": 2, "b": 1},
            },
            {
                "client": 1,
                "group": "y",
                "examples": 2,
                "train": 1,
                "validation": 1,
                "test": 0,
                "classes": {"b": 1, "c": 1},
            },
        ],
    }


def test_the_table_has_a_row_per_client_and_a_column_per_class() -> None:
    lines = [line.split() for line in rendered(describe(DIVIDED)).splitlines() if line.strip()]
    assert lines[0] == ["client", "group", "0", "1", "2", "all", "train", "test"]
    assert lines[2:] == [
        ["0", "x", "2", "1", ".", "3", "2", "1"],
        ["1", "y", ".", "1", "1", "2", "1", "0"],
    ]


def test_twenty_clients_and_ten_classes_fit_into_a_hundred_columns() -> None:
    labels = np.arange(60_000) % 10
    data = Dataset("wide", np.zeros((60_000, 1)), labels, tuple("airplanes" for _ in range(10)))
    division = describe(federate(data, concentration=0.1))
    lines = [line.split() for line in rendered(division).splitlines() if line.strip()]
    assert len(lines) == 2 + 20
    for client, cells in enumerate(lines[2:]):
        expected = [client, *division.counts[client], division.counts[client].sum()]
        assert [0 if cell == "." else int(cell) for cell in cells[:-2]] == expected


def test_many_classes_are_summed_up() -> None:
    counts = np.zeros((2, 30), dtype=np.int64)
    counts[0, [3, 7]] = 1, 3
    counts[1] = 2
    names = tuple(f"kind{label}" for label in range(30))
    division = Division("many", names, counts, (3, 50), (0, 0), (1, 10))
    lines = [line.split() for line in rendered(division).splitlines() if line.strip()]
    assert lines[2:] == [
        ["0", "2", "kind7", "75%", "4", "3", "1"],
        ["1", "30", "kind0", "3%", "60", "50", "10"],
    ]


def test_the_area_of_a_bubble_is_its_share_of_the_largest(tmp_path: Path) -> None:
    few, many = (
        Division("one", ("a",), np.array([[100], [count]]), (0, 0), (0, 0), (0, 0))
        for count in (25, 100)
    )
    dark = []
    for division in (few, many):
        draw(division, tmp_path / "picture.png")
        picture = imread(tmp_path / "picture.png")[..., 0]
        # Without the key to the sizes, which is on the right.
        dark.append((np.abs(picture[:, : picture.shape[1] * 3 // 4] - 0.6) < 0.02).sum())
    # One full bubble and a quarter, against two; the rims take a little off small ones.
    assert 0.58 < dark[0] / dark[1] < 0.64


@pytest.mark.parametrize("shape", [(1, 1), (20, 10), (100, 10), (20, 200)])
def test_pictures_of_any_size_are_drawn(tmp_path: Path, shape: tuple[int, int]) -> None:
    counts = np.random.default_rng(0).integers(0, 50, shape) + 1
    nothing = (0,) * shape[0]
    classes = tuple(str(label) for label in range(shape[1]))
    draw(Division("any", classes, counts, nothing, nothing, nothing), tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"cannot draw into .*\n.*\.png or \.pdf"):
        draw(describe(DIVIDED), tmp_path / "a.gif")


def test_the_command_shows_the_division_that_a_run_would_use(subflot: Command) -> None:
    from subflot.data.sets import load

    options = ("--clients", "7", "--concentration", "0.5", "--seed", "3")
    code, out, _ = subflot("data", "show", "digits", *options, "--json")
    shown = json.loads(out)
    data = federate(load("digits"), num_clients=7, concentration=0.5, seed=3)
    assert code == 0
    assert [client["train"] for client in shown["clients"]] == [data.num_train(i) for i in range(7)]
    assert (shown["partition"], shown["seed"]) == ("dirichlet", 3)
    assert (shown["concentration"], shown["min_examples"]) == (0.5, 2)


def test_the_command_prints_a_table_and_draws(subflot: Command, tmp_path: Path) -> None:
    picture = tmp_path / "clients.png"
    code, out, err = subflot(
        "data", "show", "digits-domains", "--partition", "by_domain", "--plot", str(picture)
    )
    assert code == 0
    assert out.startswith("digits-domains: 1,797 examples, 5 clients, by_domain")
    assert "inverted" in out
    assert "classes:" not in out  # The digits are their own names.
    assert err == f"wrote {picture}\n"
    assert imread(picture).ndim == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("digts",), "error: unknown data set `digts`\nhint: did you mean `digits`?"),
        (("digits", "--partition", "dirichle"), "error: unknown partition `dirichle`\nhint: did"),
        (("digits", "--clients", "0"), "error: num_clients is 0"),
        (("digits", "--clients", "1000"), "error: 1797 examples are too few for 1000 clients"),
        (("digits", "--concentration", "-1"), "error: concentration is -1.0"),
        (("digits", "--concentration", "nan"), "error: concentration is nan"),
        (("digits", "--classes-per-client", "3"), "error: partition `dirichlet` has no setting"),
        (("digits", "--partition", "by_group"), "error: partition `by_group` needs groups"),
        (("digits", "--plot", "clients.gif"), "error: cannot draw into `clients.gif`"),
        (("digits", "--plot", "/nowhere/a.png"), "error: cannot write /nowhere/a.png: No such"),
        (("digits", "--set", "size=9"), "error: `digits` has no settings"),
    ],
)
def test_mistakes_on_the_command_line_are_one_message(
    subflot: Command, args: tuple[str, ...], said: str
) -> None:
    code, out, err = subflot("data", "show", *args)
    assert (code, out) == (2, "")
    assert err.startswith(said)
