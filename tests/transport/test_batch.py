"""Aligning many pairs gives what one by one gives, in order, without running ahead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tolerances import EXACT
from torch import Tensor
from traced import traced

from subflot import ChannelMap, SubflotError, take
from subflot.channels.keep import random
from subflot.transport import align, align_all

Weights = dict[str, Tensor]
Pair = tuple[Weights, Weights]


@pytest.fixture(scope="module")
def case() -> tuple[list[Pair], ChannelMap]:
    model, channels, _ = traced("digits-cnn")
    weights = dict(model.state_dict())
    pairs = []
    for seed, rate in enumerate((0.0, 0.25, 0.5, 0.75, 0.5, 0.25)):
        kept = random(channels, rate, torch.Generator().manual_seed(seed))
        client = {n: 1.1 * t if t.is_floating_point() else t for n, t in weights.items()}
        narrow = take(client, channels, kept)
        pairs.append((weights, narrow) if seed % 2 else (narrow, weights))
    return pairs, channels


@pytest.mark.parametrize("workers", [1, 2, 5, None])
def test_results_come_in_order_and_equal_those_of_one_by_one(
    case: tuple[list[Pair], ChannelMap], workers: int | None
) -> None:
    pairs, channels = case
    results = list(align_all(pairs, channels, workers=workers, residual="joint"))
    assert len(results) == len(pairs)
    for (source, target), found in zip(pairs, results, strict=True):
        expected = align(source, target, channels, residual="joint")
        assert found.weights.keys() == expected.weights.keys()
        for name, tensor in expected.weights.items():
            torch.testing.assert_close(found.weights[name], tensor, **EXACT)


def test_pairs_are_taken_only_as_results_are_fetched(case: tuple[list[Pair], ChannelMap]) -> None:
    pairs, channels = case
    num_taken = 0

    def counted() -> Iterator[Pair]:
        nonlocal num_taken
        for pair in pairs:
            num_taken += 1
            yield pair

    results = align_all(counted(), channels, workers=2)
    assert num_taken == 0
    for fetched in range(1, len(pairs) + 1):
        next(results)
        assert num_taken <= fetched + 2
    assert next(results, None) is None


@pytest.mark.parametrize("is_closed_early", [True, False])
def test_the_number_of_threads_is_restored(
    case: tuple[list[Pair], ChannelMap], is_closed_early: bool
) -> None:
    pairs, channels = case
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        results = align_all(pairs, channels, workers=2)
        next(results)
        assert torch.get_num_threads() == 1
        if is_closed_early:
            results.close()  # type: ignore[attr-defined]
        else:
            list(results)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("is_first_closed_first", [True, False])
def test_batches_that_overlap_restore_the_number_of_threads_at_the_end(
    case: tuple[list[Pair], ChannelMap], is_first_closed_first: bool
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        batches = [align_all(*case, workers=1) for _ in range(2)]
        for batch in batches:
            next(batch)
        one, other = batches if is_first_closed_first else batches[::-1]
        one.close()  # type: ignore[attr-defined]
        assert torch.get_num_threads() == 1
        other.close()  # type: ignore[attr-defined]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_batches_in_several_threads_give_the_same_results(
    case: tuple[list[Pair], ChannelMap],
) -> None:
    pairs, channels = case
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(lambda: list(align_all(pairs, channels))) for _ in range(3)]
        batches = [future.result() for future in futures]
    for batch in batches:
        for (source, target), found in zip(pairs, batch, strict=True):
            for name, tensor in align(source, target, channels).weights.items():
                torch.testing.assert_close(found.weights[name], tensor, **EXACT)


def test_an_error_comes_where_its_pair_stood(case: tuple[list[Pair], ChannelMap]) -> None:
    pairs, channels = case
    source, target = pairs[1]
    name = "features.4.weight"
    broken = {**source, name: source[name] * float("nan")}
    results = align_all([pairs[0], (broken, target), pairs[2]], channels, workers=2)
    next(results)
    with pytest.raises(SubflotError, match=r"features\.4\.weight"):
        next(results)
    assert next(results, None) is None


def test_no_workers_are_refused_at_once(case: tuple[list[Pair], ChannelMap]) -> None:
    with pytest.raises(SubflotError, match="workers=0"):
        align_all(*case, workers=0)
