"""A user's own arrays, torch data sets, image folders and tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from subflot.data import own_images
from subflot.data.dataset import Dataset
from subflot.data.federated import federate
from subflot.data.images import decode
from subflot.data.own import from_arrays, from_torch
from subflot.data.own_images import from_folder, from_table
from subflot.errors import SubflotError

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def paint(path: Path, colour: str, size: tuple[int, int] = (12, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, COLOURS[colour]).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pictures of each colour, of unlike sizes, among files that are no pictures."""
    for colour in COLOURS:
        paint(tmp_path / "images" / colour / "1.png", colour)
        paint(tmp_path / "images" / colour / "2.PNG", colour, (20, 7))
    (tmp_path / "images" / "red" / "notes.txt").write_text("none")
    (tmp_path / "images" / ".git").mkdir()
    return tmp_path / "images"


def colour_of(data: Dataset, place: int) -> tuple[int, ...]:
    """The colour of a picture that has one only."""
    (colour,) = {tuple(pixel) for pixel in data.inputs[place].reshape(3, -1).T.tolist()}
    return colour


def test_numbers_stay_as_they_are_and_names_are_numbered_in_order() -> None:
    assert from_arrays(np.zeros((3, 2)), [1, 0, 2]).labels.tolist() == [1, 0, 2]
    named = from_arrays(np.zeros((3, 2)), ["pear", "apple", "pear"], ["z", "y", "x"])
    assert (named.labels.tolist(), named.classes) == ([1, 0, 1], ("apple", "pear"))
    assert named.groups is not None
    assert (named.groups.tolist(), named.group_names) == ([2, 1, 0], ("x", "y", "z"))


def test_named_classes_keep_their_order_and_may_be_without_examples() -> None:
    by_name = from_arrays(np.zeros((2, 1)), ["pear", "apple"], classes=["pear", "plum", "apple"])
    assert by_name.labels.tolist() == [0, 2]
    by_number = from_arrays(np.zeros((2, 1)), [0, 2], classes=["pear", "plum", "apple"])
    assert by_number.classes == ("pear", "plum", "apple")


def test_tensors_lists_and_arrays_are_the_same_data() -> None:
    values = np.arange(12.0).reshape(3, 2, 2)
    expected = torch.tensor(values, dtype=torch.float32)
    for inputs in (values, torch.tensor(values), list(values), [torch.tensor(v) for v in values]):
        data = from_arrays(inputs, torch.tensor([0, 1, 0]))
        assert torch.equal(data.tensors([0, 1, 2])[0], expected)
        assert data.inputs.dtype == np.float32


def test_bytes_are_images_between_minus_one_and_one_and_tokens_stay_whole() -> None:
    images = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1).repeat(3, axis=1)
    assert from_arrays(images, [0, 1]).tensors([0, 1])[0][:, 2, 0, 0].tolist() == [-1.0, 1.0]
    assert from_arrays([[5, 7]], [0]).tensors([0])[0].dtype == torch.int64


class Pairs(TorchDataset[Any]):
    """Numbered examples with a label each, as a user would write it."""

    def __init__(self, first: int, labels: list[Any]) -> None:
        self.first, self.labels = first, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> Any:
        return torch.full((2,), float(self.first + place)), self.labels[place]


class Pictures(Pairs):
    classes = ("cat", "dog")

    def __getitem__(self, place: int) -> Any:
        return Image.new("RGB", (4, 6), (place, 10, 20)), self.labels[place]


def test_a_torch_data_set_is_read_in_order() -> None:
    tensors = TensorDataset(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 1, 0]))
    data = from_torch(tensors)
    assert torch.equal(data.tensors(range(4))[0], tensors.tensors[0])
    assert data.labels.tolist() == [0, 1, 1, 0]
    assert data.groups is None
    assert from_torch([(np.zeros(3), "b"), (np.ones(3), "a")]).labels.tolist() == [1, 0]


def test_each_of_several_torch_data_sets_is_a_client() -> None:
    data = from_torch([Pairs(0, ["a", "b", "a"]), Pairs(100, ["b", "b", "a", "b"])])
    federated = federate(data, partition="by_group", test_share=0.0)
    assert federated.train(0).inputs[:, 0].tolist() == [0, 1, 2]
    assert federated.train(1).inputs[:, 0].tolist() == [100, 101, 102, 103]


def test_pictures_of_a_torch_data_set_have_their_channels_first_and_its_class_names() -> None:
    data = from_torch(Pictures(0, [1, 0, 1]))
    assert data.input_shape == (3, 6, 4)
    assert data.inputs[2, :, 0, 0].tolist() == [2, 10, 20]
    assert data.classes == ("cat", "dog")
    grey = from_torch([(Image.new("L", (4, 6), 9), 0)])
    assert grey.input_shape == (1, 6, 4)


def test_a_folder_has_a_class_per_folder(folder: Path) -> None:
    data = from_folder(folder, size=8)
    assert data.name == "images"
    assert data.inputs.shape == (6, 3, 8, 8)
    assert data.classes == ("blue", "green", "red")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert [colour_of(data, place) for place in range(6)] == [
        COLOURS[data.classes[label]] for label in data.labels
    ]
    assert from_folder(folder, size=8, channels=1).inputs.shape == (6, 1, 8, 8)


def test_a_folder_of_domains_has_a_group_per_domain(tmp_path: Path) -> None:
    for domain, colours in (("photo", ["red", "blue"]), ("sketch", ["green", "blue"])):
        for colour in colours:
            paint(tmp_path / "images" / domain / colour / "1.png", colour)
    data = from_folder(tmp_path / "images", domains=True)
    assert data.groups is not None
    assert data.group_names == ("photo", "sketch")
    found = [
        (data.group_names[g], data.classes[c])
        for g, c in zip(data.groups, data.labels, strict=True)
    ]
    assert found == [("photo", "blue"), ("photo", "red"), ("sketch", "blue"), ("sketch", "green")]


def test_a_table_says_label_and_client_of_each_file(folder: Path) -> None:
    rows = [
        "images/red/1.png,warm,anna",
        "images/blue/2.PNG,cold,ben",
        "images/blue/1.png,cold,anna",
    ]
    table = folder.parent / "mine.csv"
    table.write_text("file,label,client\n" + "\n".join(rows) + "\n")
    data = from_table(table, size=4)
    assert data.groups is not None
    assert (data.name, data.classes, data.group_names) == (
        "mine",
        ("cold", "warm"),
        ("anna", "ben"),
    )
    assert (data.labels.tolist(), data.groups.tolist()) == ([1, 0, 0], [0, 1, 0])
    assert [colour_of(data, place)[0] for place in range(3)] == [255, 0, 0]
    table.write_text("label,file\nwarm,images/red/1.png\n")
    assert from_table(table).groups is None


def test_images_are_decoded_once_until_something_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def counting(content: bytes, settings: Any, name: str) -> Any:
        decoded.append(name)
        return decode(content, settings, name)

    monkeypatch.setattr(own_images, "decode", counting)
    first, second = from_folder(folder, size=8), from_folder(folder, size=8)
    assert len(decoded) == 6
    assert isinstance(second.inputs, np.memmap)
    assert np.array_equal(first.inputs, second.inputs)
    assert second.classes == first.classes
    from_folder(folder, size=9)
    assert len(decoded) == 12
    paint(folder / "red" / "1.png", "green", (3, 3))
    assert colour_of(from_folder(folder, size=8), 4) == COLOURS["green"]
    (folder / "red").rename(folder / "crimson")
    assert from_folder(folder, size=8).classes == ("blue", "crimson", "green")


def test_other_labels_or_clients_for_the_same_files_are_other_data(folder: Path) -> None:
    table = folder.parent / "mine.csv"
    found = []
    for label, client in (("warm", "anna"), ("cold", "anna"), ("cold", "ben")):
        table.write_text(f"file,label,client\nimages/red/1.png,{label},{client}\n")
        data = from_table(table)
        found.append((*data.classes, *data.group_names))
    assert found == [("warm", "anna"), ("cold", "anna"), ("cold", "ben")]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: from_arrays([[1, 2], [3]], [0, 1]), r"example 1 has shape \(1,\), the first \(2"),
        (lambda: from_arrays(["a", "b"], [0, 1]), "example 0 is a str"),
        (lambda: from_arrays(np.zeros((2, 3)), [0.0, 1.0]), "labels have type float64"),
        (lambda: from_arrays(np.zeros((2, 3)), [[0, 1], [1, 0]]), r"shape \(2, 2\)"),
        (lambda: from_arrays(np.zeros((2, 3)), [1, 2]), "its 2 labels are 1 to 2, expected 0 to 1"),
        (
            lambda: from_arrays(np.zeros((3, 3)), [0, 1, 3]),
            "its 3 labels are 0 to 3, expected 0 to 2",
        ),
        (
            lambda: from_arrays(np.zeros((2, 3)), [-1, 0]),
            "its 2 labels are -1 to 0, expected 0 to 1",
        ),
        (lambda: from_arrays(np.zeros((1, 3)), ["c"], classes=["a", "b"]), "label `c` is none of"),
        (lambda: from_arrays(np.zeros((2, 3)), [0, 1, 1]), "labels have shape"),
        (lambda: from_arrays(np.zeros((2, 3)), [0, 1], [5]), "groups have shape"),
        (lambda: from_arrays(np.zeros((2, 3)), [0, 1], spans=[0, 1]), r"spans have shape \(2,\)"),
        (
            lambda: from_arrays(np.zeros((2, 3)), [0, 1], spans=[(0, 0, 1.5), (0, 1, 2)]),
            "type float64",
        ),
        (
            lambda: from_arrays(np.zeros((2, 3)), [0, 1], spans=[(0, 0, 4), (0, 4, 4)]),
            r"example 1 has the span \[0, 4, 4\]",
        ),
        (lambda: from_arrays([], []), "`own` has no examples"),
        (
            lambda: from_arrays(np.zeros((2, 32, 32, 3), np.uint8), [0, 1]),
            r"\(32, 32, 3\) have their channels last\n.*transpose\(0, 3, 1, 2\)",
        ),
        (lambda: from_torch(TensorDataset(torch.zeros(3, 2))), "item 0 of TensorDataset is not an"),
        (lambda: from_torch(iter([])), "list_iterator has no length"),
        (lambda: from_torch(Pictures(0, [0, 2])), "example 1 has label 2"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_a_reason(
    call: Callable[[], Dataset], said: str
) -> None:
    with pytest.raises(SubflotError, match=said):
        call()


@pytest.mark.parametrize(
    ("files", "settings", "said"),
    [
        ({}, {}, "there are no folders in .*data\n.*expected class/file"),
        ({"1.png": "red"}, {}, "there are no folders in"),
        ({"a/1.txt": ""}, {}, "there are no images in .*a\n"),
        ({"photo/a/1.png": "red"}, {}, "there are no images in .*photo"),
        ({"a/1.png": "red"}, {"domains": True}, "no folders in .*a\n.*expected domain/class/file"),
        ({"a/1.png": "red", "b/bad.png": ""}, {}, "bad.png: cannot be read as a picture"),
        ({"a/1.png": "red"}, {"size": 0}, "size is 0"),
        ({"a/1.png": "red"}, {"channels": 2}, "channels is 2"),
    ],
)
def test_a_folder_that_is_not_as_expected_is_named(
    tmp_path: Path, files: dict[str, str], settings: dict[str, Any], said: str
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for name, colour in files.items():
        if colour:
            paint(root / name, colour)
        else:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text("nothing to see")
    with pytest.raises(SubflotError, match=said):
        from_folder(root, **settings)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"there is no folder .*nowhere"):
        from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has the columns none\n.*names the columns file, label"),
        ("path,label\nimages/red/1.png,a\n", "has the columns path, label"),
        ("file,label\n", "lists no images"),
        (
            "file,label\nimages/red/1.png,a\nimages/red/9.png,a\n",
            "line 3: there is no file .*9.png",
        ),
        ("file,label\nimages/red/1.png\n", "line 2: a value is missing"),
        ("file,label,client\nimages/red/1.png,a,\n", "line 2: a value is missing"),
        ("file,label\nimages/red/notes.txt,a\n", "notes.txt: cannot be read as a picture"),
    ],
)
def test_a_table_that_is_not_as_expected_is_refused_with_its_line(
    folder: Path, text: str, said: str
) -> None:
    table = folder.parent / "mine.csv"
    table.write_text(text)
    with pytest.raises(SubflotError, match=said):
        from_table(table)


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"cannot read .*none\.csv"):
        from_table(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"file,label\n\xff\xfe\n")
    with pytest.raises(SubflotError, match=r"cannot read .*binary\.csv"):
        from_table(tmp_path / "binary.csv")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_no_model_can_learn_from_are_refused(value: float) -> None:
    inputs = np.zeros((4, 2, 3))
    inputs[2, 1, 0] = inputs[3, 0, 0] = value
    for given in (inputs, torch.from_numpy(inputs), list(inputs)):
        with pytest.raises(
            SubflotError, match=f"example 2 holds {value}\n.*leave such examples out"
        ):
            from_arrays(given, [0, 1, 0, 1])
