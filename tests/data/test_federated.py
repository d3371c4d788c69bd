"""What each client of a federation trains on and is tested on."""

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from subflot.data.dataset import Dataset
from subflot.data.federated import FederatedData, federate
from subflot.data.own import from_arrays
from subflot.data.partition import divide
from subflot.data.sets import load
from subflot.data.source import Files
from subflot.data.split import Shares, split
from subflot.errors import SubflotError

RANDOM = np.random.default_rng(0)
SIZE = 600
# The input of each example is its number, so that it can be found again.
NUMBERED = Dataset(
    "numbered",
    np.arange(SIZE, dtype=np.float32)[:, None],
    RANDOM.integers(0, 6, SIZE),
    tuple("abcdef"),
    RANDOM.integers(0, 5, SIZE),
    tuple("vwxyz"),
    test_share=0.25,
)


def numbers(data: FederatedData, part: str) -> list[list[int]]:
    """Client -> the examples of a part, read back from the inputs."""
    take = getattr(data, part)
    return [take(client).inputs[:, 0].int().tolist() for client in range(data.num_clients)]


@given(
    partition=st.sampled_from(["iid", "dirichlet", "pathological", "by_group"]),
    validation_share=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 100),
)
def test_every_example_is_in_one_part_of_one_client_with_its_own_label(
    partition: str, validation_share: float, seed: int
) -> None:
    data = federate(NUMBERED, partition=partition, validation_share=validation_share, seed=seed)
    every = [*numbers(data, "train"), *numbers(data, "validation"), *numbers(data, "test")]
    assert sorted(itertools.chain(*every)) == list(range(SIZE))
    assert (validation_share > 0) == any(numbers(data, "validation"))
    for client in range(data.num_clients):
        examples = data.test(client)
        found = examples.inputs[:, 0].int().numpy()
        assert np.array_equal(examples.labels, NUMBERED.labels[found])
        assert len(data.train(client)) == data.num_train(client) > 0


def test_it_is_the_named_partition_and_the_split_of_the_same_seed() -> None:
    data = federate(NUMBERED, partition="dirichlet", num_clients=7, seed=4, concentration=0.5)
    clients = divide(
        "dirichlet", NUMBERED.labels, num_clients=7, seed=4, concentration=0.5, min_examples=2
    )
    shares = split(NUMBERED.labels, clients, test_share=0.25, seed=4)
    assert numbers(data, "train") == [share.train.tolist() for share in shares]
    assert numbers(data, "test") == [share.test.tolist() for share in shares]


def test_the_share_of_the_data_set_can_be_overruled() -> None:
    for share, expected in ((None, 150), (0.5, 300), (0.0, 0)):
        data = federate(NUMBERED, partition="iid", num_clients=1, test_share=share)
        assert len(data.test(0)) == expected


def test_windows_of_a_recording_are_split_in_time() -> None:
    spans = [(number // 30, number % 30 * 4, number % 30 * 4 + 8) for number in range(60)]
    inputs = np.arange(60, dtype=np.float32)[:, None]
    windows = from_arrays(inputs, [0, 1] * 30, [0] * 30 + [1] * 30, spans=spans)
    data = federate(windows, partition="by_group", test_share=0.2)
    assert numbers(data, "train") == [list(range(23)), list(range(30, 53))]
    assert numbers(data, "test") == [list(range(24, 30)), list(range(54, 60))]


def test_groups_are_clients_by_default_and_label_skew_takes_twenty() -> None:
    assert federate(NUMBERED, partition="by_group").num_clients == 5
    assert federate(NUMBERED, partition="by_domain", num_clients=20).num_clients == 20
    assert federate(NUMBERED).num_clients == 20


def test_an_empty_part_has_the_shape_of_its_inputs() -> None:
    examples = federate(NUMBERED).validation(0)
    assert len(examples) == 0
    assert examples.inputs.shape == (0, 1)
    assert examples.labels.dtype == torch.int64


def test_mapped_data_travel_to_another_process_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "inputs.npy", np.zeros((5000, 200), dtype=np.float32))
    inputs = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    dataset = Dataset("mapped", inputs, np.arange(5000) % 4, tuple("abcd"))
    data = federate(dataset, partition="iid", num_clients=10)
    pickled = pickle.dumps(data)
    assert len(pickled) < 100_000 < inputs.nbytes
    copy = pickle.loads(pickled)
    assert torch.equal(copy.train(3).labels, data.train(3).labels)


@pytest.mark.slow
def test_each_person_of_har_is_a_client(real: Callable[[str], Files]) -> None:
    real("har")
    data = federate(load("har"), partition="by_group")
    sizes = [(data.num_train(client), len(data.test(client))) for client in range(30)]
    assert data.num_clients == 30
    assert sum(map(sum, sizes)) == 10_299
    assert all(abs(test - 2 / 7 * (train + test)) <= 1 for train, test in sizes)
    assert data.train(0).inputs.shape[1:] == (9, 1, 128)
    for client in range(30):
        assert data.test(client).labels.unique().tolist() == [0, 1, 2, 3, 4, 5]


EMPTY = np.array([], dtype=np.int64)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: federate(NUMBERED).train(20), "no client 20\n.*20 clients, numbered from 0"),
        (lambda: federate(NUMBERED).num_train(-1), "no client -1"),
        (lambda: federate(NUMBERED, partition="iidd"), "did you mean `iid`"),
        (lambda: federate(NUMBERED, concentraton=1), "no setting `concentraton`"),
        (
            lambda: FederatedData(NUMBERED, (Shares(np.array([0, 600]), EMPTY, EMPTY),)),
            "client 0 has examples 0 to 600 of data set `numbered`\n.*it has 600 examples",
        ),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(
    call: Callable[[], object], said: str
) -> None:
    with pytest.raises(SubflotError, match=said):
        call()
