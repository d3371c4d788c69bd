"""What cannot be cut is frozen, with the operation, the module and the reason."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tolerances import DOUBLE
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot import ChannelError, build, put, take, trace
from subflot.channels.keep import prefix

IMAGE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Mixer(nn.Module):
    """Some function of channels, in a module of its own."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Net(nn.Module):
    """Two layers with a function between them, and a third behind that is always free."""

    def __init__(self, function: Callable[[Tensor], Tensor], passed: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.mixer = Mixer(function)
        self.second = nn.Conv2d(passed, 10, 3, padding=1)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(self.mixer(self.first(x)))).mean((2, 3)))


class Doubled(torch.autograd.Function):
    """Harmless in the forward pass, but what goes back is anybody's guess."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0].flip(1)


doubled = Doubled.apply  # Bound before anybody could watch for the name.


class Tripled(torch.autograd.Function):
    """The same in the older style, and behind a decorator."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(ctx: object, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0].flip(1)


def through_numpy(x: Tensor) -> Tensor:
    """Leaves torch, where no operation is seen."""
    return torch.from_numpy(x.detach().numpy()[:, ::-1].copy())


def behind_torchs_back(x: Tensor) -> Tensor:
    """Scales each channel by its number in memory, where torch sees nothing at all."""
    x.numpy()[:] *= np.arange(1, x.shape[1] + 1).reshape(1, -1, 1, 1)
    return x


FROZEN = {
    "fft": (lambda x: torch.fft.fft(x, dim=1).real, "fft"),
    "sort": (lambda x: x.sort(dim=1)[0], "sort"),
    "topk": (lambda x: x.topk(8, dim=1)[0], "topk"),
    "cumsum": (lambda x: x.cumsum(1), "cumsum"),
    "flip": (lambda x: x.flip(1), "flip"),
    "custom autograd function": (doubled, "Doubled"),
    "decorated autograd function": (Tripled.apply, "Tripled"),
    "one channel by number": (lambda x: x - x[:, 3].unsqueeze(1), "select"),
    "numpy": (through_numpy, "does not run with another number of channels"),
    "memory": (behind_torchs_back, "permuting its channels changes the output"),
    "pooling over channels": (
        lambda x: F.avg_pool1d(x.flatten(2).transpose(1, 2), 3, 1, 1).transpose(1, 2).view_as(x),
        "avg_pool2d in `mixer`: its entries are places",
    ),
    "where the largest is": (
        lambda x: x * (x.max(dim=1, keepdim=True)[1] + 1),
        "place of an extreme value",
    ),
    "noise": (lambda x: x + torch.randn_like(x), "random numbers"),
    "constant tensor": (
        lambda x: x * torch.arange(1.0, 9.0, device=x.device).view(1, 8, 1, 1),
        "arange",
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_an_operation_that_depends_on_the_order_freezes_its_channels_and_says_so(name: str) -> None:
    function, said = FROZEN[name]
    model = Net(function).eval()
    channels = trace(model, IMAGE)
    assert channels.prunable == ["second"]
    reasons = [str(channels.frozen[s]) for s in channels.frozen if s.startswith("first")]
    assert any(said in reason for reason in reasons)
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    assert narrow.first.out_channels == 8
    assert narrow.second.out_channels == 5
    with torch.no_grad():
        assert narrow(IMAGE).shape == (2, 4)


def test_the_reason_names_operation_and_module() -> None:
    channels = trace(Net(lambda x: x.sort(dim=1)[0]), IMAGE)
    reason = channels.frozen["first"]
    assert (reason.operation, reason.module) == ("sort", "mixer")
    assert str(reason) == "sort in `mixer`: the order along this axis matters"


def numbers(x: Tensor) -> Tensor:
    """Both rows of the batch, the second first."""
    return torch.tensor([1, 0], device=x.device)


def unpooled(x: Tensor) -> Tensor:
    """The largest of every four places, where it was."""
    largest, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(largest, places, [2, 2])


FREE = {
    "softmax over channels": lambda x: x.softmax(1),
    "fft over positions": lambda x: torch.fft.fft(x, dim=3).real,
    "sort over positions": lambda x: x.sort(dim=3)[0],
    "largest channel": lambda x: x - x.max(dim=1, keepdim=True)[0],
    "mean and norm of channels": lambda x: (
        (x - x.mean(1, keepdim=True)) / x.norm(dim=1, keepdim=True)
    ),
    "roll of positions": lambda x: x.roll(1, 2),
    "interpolation": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "windows and back": lambda x: F.fold(F.unfold(x, 3, padding=1), (6, 6), 3, padding=1),
    "rows of the batch by number": lambda x: x[torch.arange(2, device=x.device).flip(0)],
    "places by number": lambda x: x[:, :, :, [1, 0, 3, 2, 5, 4]],
    "places by numbers of their own": lambda x: x.gather(3, x.argsort(dim=3)),
    "rows added": lambda x: torch.zeros_like(x).index_add(0, numbers(x), x),
    "rows written": lambda x: x.clone().index_put((numbers(x),), 2 * x),
    "places added": lambda x: x.scatter_add(3, x.argsort(dim=3), x),
    "pooled and unpooled": lambda x: unpooled(x),
    "diagonal": lambda x: x + x.diagonal(dim1=2, dim2=3)[..., None],
    "triangle": lambda x: x.tril(),
    "one row cleared": lambda x: x.clone().index_fill_(2, numbers(x), 0.0),
    "masked": lambda x: x.masked_fill(x < 0, 0.5).where(x < 1, x),
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x).mean((1, 2))[:, None, None, None] * x,
    "unit length": lambda x: F.normalize(x, dim=1),
    "half the places": lambda x: torch.cat([x[..., 3:], x[..., :3]], 3),
    "spread": lambda x: x + x.mean(1, keepdim=True).expand(-1, x.shape[1], -1, -1),
    "repeated places": lambda x: x.repeat(1, 1, 2, 1)[:, :, :6],
    "nearest channels last": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "spectrum of places": lambda x: torch.view_as_real(torch.fft.fft2(x))[..., 0],
    "gate": lambda x: x * torch.sigmoid(x),
    "distance to itself": lambda x: (
        x * torch.cdist(x.flatten(2), x.flatten(2)).mean((1, 2))[:, None, None, None]
    ),
}


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_depend_on_the_order_stays_free(name: str) -> None:
    assert trace(Net(FREE[name]), IMAGE).prunable == ["first", "second"]


@pytest.mark.parametrize(
    "activation",
    [
        *("ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid"),
        *("ReLU", "ReLU6", "RReLU", "SELU", "CELU", "GELU", "Sigmoid", "SiLU", "Mish", "Softplus"),
        *("Softshrink", "Softsign", "Tanh", "Tanhshrink", "PReLU", "Dropout", "Dropout2d"),
        *("AlphaDropout", "FeatureAlphaDropout", "Identity"),
    ],
)
def test_every_activation_passes_channels_on(activation: str) -> None:
    assert trace(Net(getattr(nn, activation)()), IMAGE).prunable == ["first", "second"]


def test_channels_named_by_a_slice_stay_and_the_others_are_free() -> None:
    model = Net(lambda x: x - x[:, :2].mean(1, keepdim=True)).eval()
    channels = trace(model, IMAGE)
    # The slice `:2` counts, so its two channels must stay two; the other six may go.
    assert [channels.sizes[space] for space in channels.prunable] == [6, 10]
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    assert narrow.first.out_channels == 5


class HardCoded(nn.Module):
    """A size written into the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(3, 4, 3), nn.Linear(64, 9), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.conv(x).view(-1, 64))))


def test_a_size_written_into_the_forward_pass_freezes_only_what_it_counts() -> None:
    channels = trace(HardCoded(), IMAGE)
    assert channels.prunable == ["hidden"]
    assert "does not run with another number of channels" in str(channels.frozen["conv"])


def test_a_setting_of_a_module_that_ran_well_is_found_too() -> None:
    class Ghost(nn.Module):
        """Some channels and cheap copies of them, cut to a width that is a setting."""

        def __init__(self, inputs: int, width: int) -> None:
            super().__init__()
            self.width = width
            self.main = nn.Conv2d(inputs, width // 2, 1)
            self.cheap = nn.Conv2d(width // 2, width // 2, 3, padding=1, groups=width // 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.main(x)
            return torch.cat([x, self.cheap(x)], 1)[:, : self.width]

    channels = trace(
        nn.Sequential(Ghost(3, 8), nn.ReLU(), Ghost(8, 12), nn.Flatten(), nn.Linear(432, 4)), IMAGE
    )
    assert channels.prunable == ["0.main", "2.main"]
    assert {"0.width", "2.width"} <= set(channels.attributes)


def test_a_size_kept_as_a_setting_is_changed_along() -> None:
    class WithSetting(HardCoded):
        def __init__(self) -> None:
            super().__init__()
            self.flat = 64

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.hidden(self.conv(x).view(-1, self.flat))))

    model = WithSetting()
    channels = trace(model, IMAGE)
    assert channels.prunable == ["conv", "hidden"]
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    assert narrow.flat == 32
    assert model.flat == 64


def test_a_model_in_which_nothing_can_be_cut_is_one_clear_error() -> None:
    with pytest.raises(ChannelError, match=r"nothing in Linear can be cut") as caught:
        trace(nn.Linear(4, 3), torch.randn(2, 4))
    assert "output" in str(caught.value)
    assert "input" in str(caught.value)


def test_a_model_that_does_not_run_says_so() -> None:
    with pytest.raises(ChannelError, match=r"Sequential does not run on the example"):
        trace(nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2)), torch.randn(2, 4))


def test_an_output_that_is_not_finite_cannot_be_certified() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with pytest.raises(ChannelError, match="not finite"):
        trace(net, torch.full((2, 4), float("inf")))


def test_tracing_leaves_the_model_and_the_global_random_state_alone() -> None:
    model = Net(F.relu).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    trace(model, IMAGE)
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_double_precision_weights_are_not_changed_by_certifying() -> None:
    model = Net(F.relu).double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace(model, IMAGE.double())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_named_arguments_are_an_example_too() -> None:
    channels = trace(Net(F.relu), {"x": IMAGE})
    assert channels.prunable == ["first", "second"]


SCRIPTED = torch.jit.script(nn.Linear(2, 2))
LAZY = nn.LazyLinear(4)


class Slotted:
    """An output that keeps its tensor where few look."""

    __slots__ = ("scores",)

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


def wrapped(wrap: Callable[[Tensor], object]) -> nn.Module:
    """A net that returns its result in some wrapping."""

    class Wrapped(Net):
        def forward(self, x: Tensor) -> Any:
            return wrap(super().forward(x))

    return Wrapped(F.relu)


@pytest.mark.parametrize(
    "wrap",
    [
        Slotted,
        lambda y: {"scores": [y]},
        lambda y: deque([y]),
        lambda y: (y, y > 0, y.argmax(1)),
        lambda y: SimpleNamespace(inner=SimpleNamespace(scores=y)),
    ],
)
def test_the_output_axis_is_found_however_it_is_wrapped(wrap: Callable[[Tensor], object]) -> None:
    channels = trace(wrapped(wrap), IMAGE)
    assert "head" in channels.frozen
    assert channels.prunable == ["first", "second"]


def test_a_model_that_shows_no_output_is_refused() -> None:
    with pytest.raises(ChannelError, match="returns no tensor"):
        trace(wrapped(lambda y: None), IMAGE)


def test_masked_outputs_can_be_certified() -> None:
    mask = torch.tensor([0.0, float("-inf"), 0.0, 0.0])
    assert trace(wrapped(lambda y: y + mask), IMAGE).prunable == ["first", "second"]


class Quartered(Net):
    """A quarter of the channels, rounded down, goes another way."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        quarter = x.shape[1] // 4
        x = torch.cat([x[:, :quarter].sigmoid(), x[:, quarter:]], 1)
        return self.head(F.relu(self.second(x)).mean((2, 3)))


class Squeezed(Net):
    """All axes of length one are dropped, a single channel among them."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(F.relu(self.second(self.first(x))), 1).squeeze()
        return self.head(x)


class Shortcut(Net):
    """A shortcut that appears when two sizes happen to be equal."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(x)
        y = y + x if y.shape == x.shape else y
        return self.head(F.relu(y).mean((2, 3)))


@pytest.mark.parametrize("kind", [Quartered, Squeezed])
@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75, 0.9, 0.99])
def test_whatever_is_free_runs_at_every_rate_and_is_the_full_model_without_the_rest(
    kind: type[Net], rate: float
) -> None:
    torch.manual_seed(0)
    model = kind(F.relu).double().eval()
    channels = trace(model, IMAGE.double())
    kept = prefix(channels, rate)
    part = take(model.state_dict(), channels, kept)
    values, _ = put(part, model.state_dict(), channels, kept)
    full: Any = build(model, channels, values)
    narrow: Any = build(model, channels, part)
    with torch.no_grad():
        torch.testing.assert_close(narrow(IMAGE.double()), full(IMAGE.double()), **DOUBLE)


def test_sizes_that_must_not_become_equal_are_frozen() -> None:
    with pytest.raises(ChannelError, match="puts them in other places"):
        trace(Shortcut(F.relu), IMAGE)


def test_a_space_that_needs_two_channels_keeps_two() -> None:
    channels = trace(Squeezed(F.relu), IMAGE)
    assert channels.least == {"second": 2}
    assert channels.kept_sizes(0.99) == {"first": 1, "second": 2}
    with pytest.raises(ChannelError, match="at least 2 channels"):
        take({}, channels, {"second": torch.tensor([0])})


def test_every_space_that_needs_two_channels_keeps_two() -> None:
    class Twice(Squeezed):
        def forward(self, x: Tensor) -> Tensor:
            gate = F.adaptive_avg_pool2d(self.first(x), 1).squeeze()
            x = self.second(self.first(x) * gate[:, :, None, None])
            return self.head(F.adaptive_avg_pool2d(x, 1).squeeze())

    assert trace(Twice(F.relu), IMAGE).least == {"first": 2, "second": 2}


def test_a_space_whose_spread_is_taken_keeps_two_channels() -> None:
    model = Net(lambda x: x / x.std(1, keepdim=True)).eval()
    channels = trace(model, IMAGE)
    narrow = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.99)))
    assert channels.least == {"first": 2}
    assert narrow(IMAGE).isfinite().all()


def test_a_closure_over_the_original_model_is_refused() -> None:
    class Closed(Net):
        def __init__(self) -> None:
            super().__init__(F.relu)
            self.shortcut: Callable[[Tensor], Tensor] = lambda x: self.first(x)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.shortcut(x)).mean((2, 3)))

    with pytest.raises(ChannelError, match="uses tensors of the original model"):
        trace(Closed(), IMAGE)


def test_parts_that_cannot_be_seen_in_training_are_an_error_not_a_guess() -> None:
    class NeedsTargets(Net):
        def __init__(self) -> None:
            super().__init__(F.relu)
            self.extra = nn.Linear(8, 3)

        def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
            if self.training:
                assert target is not None, "training needs targets"
                return self.extra(self.first(x).mean((2, 3)))
            return super().forward(x)

    with pytest.raises(ChannelError, match=r"`extra.weight` is not used .* training needs targets"):
        trace(NeedsTargets(), IMAGE)


def test_an_example_of_one_shows_the_training_path_behind_batch_norm() -> None:
    class Extra(Net):
        def __init__(self) -> None:
            super().__init__(F.relu)
            self.norm, self.extra = nn.BatchNorm1d(10), nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.second(self.first(x)).mean((2, 3)))
            return self.head(x) if not self.training else self.extra(x)

    channels = trace(Extra(), IMAGE[:1])
    assert ("extra.weight", 1) in channels.members("second")


@pytest.mark.parametrize(
    ("model", "example", "said"),
    [
        (Net(F.relu), 3, "the example is a int"),
        (nn.Sequential(LAZY, nn.Linear(4, 2)), IMAGE, "has no shape yet"),
        (SCRIPTED, IMAGE, "scripted module"),
    ],
)
def test_what_cannot_be_traced_is_one_clear_error(
    model: nn.Module, example: Any, said: str
) -> None:
    with pytest.raises(ChannelError, match=said):
        trace(model, example)
