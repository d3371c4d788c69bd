"""Random streams by name: fixed for ever, apart from each other, and free of any order."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from subflot.seeding import generator, numpy_generator

names = st.lists(st.text(max_size=4) | st.integers(-20, 20), max_size=4)


def first_number(seed: int, *parts: str | int) -> int:
    return int(numpy_generator(seed, *parts).bit_generator.random_raw())


def test_streams_are_the_ones_they_always_were() -> None:
    # Recorded results depend on these numbers: a change here is a change of every result.
    raw = numpy_generator(7, "client", 3).bit_generator.random_raw(3)
    assert list(raw) == [6887296433989831777, 1087769829534178662, 13529879813118181446]
    drawn = torch.randint(0, 2**31, (3,), generator=generator(7, "client", 3))
    assert drawn.tolist() == [2043006560, 125589894, 170978473]


def test_the_digest_is_sha256_over_kind_length_and_text_of_each_part() -> None:
    encoded = b"".join(
        kind + length.to_bytes(8, "big") + text
        for kind, length, text in [(b"i", 2, b"-5"), (b"s", 3, b"a\xc3\xa9"), (b"i", 2, b"12")]
    )
    number = int.from_bytes(hashlib.sha256(encoded).digest(), "big")
    assert generator(-5, "aé", 12).initial_seed() == number % 2**64
    assert first_number(-5, "aé", 12) == np.random.PCG64(number).random_raw()


def test_another_process_draws_the_same() -> None:
    program = (
        "from subflot.seeding import generator; print(generator(3, 'kept', 'conv').initial_seed())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == generator(3, "kept", "conv").initial_seed()


@given(st.integers(-100, 100), names, st.integers(-100, 100), names)
def test_only_equal_seeds_and_names_give_equal_streams(
    seed: int, parts: list[str | int], other_seed: int, other_parts: list[str | int]
) -> None:
    are_equal = (seed, parts) == (other_seed, other_parts)
    assert (first_number(seed, *parts) == first_number(other_seed, *other_parts)) == are_equal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        ((1,), ("1",)),
        ((1, 2), (12,)),
        (("a", "b"), ("b", "a")),
        (("",), ()),
        (("a", ""), ("", "a")),
        (("s",), ("i",)),
    ],
)
def test_names_that_look_alike_are_told_apart(
    one: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    assert first_number(0, *one) != first_number(0, *other)
    assert generator(0, *one).initial_seed() != generator(0, *other).initial_seed()


def test_a_seed_is_not_a_name() -> None:
    assert first_number(0, 1) != first_number(1)
    assert first_number(0, 1) != first_number(1, 0)


def test_integers_of_numpy_count_as_integers_and_fractions_are_refused() -> None:
    assert first_number(0, int(np.int64(3))) == first_number(0, np.int64(3))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="__index__"):
        generator(0, 1.0)  # type: ignore[arg-type]
