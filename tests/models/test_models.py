"""The bundled networks against the published tables, counted by hand."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import pytest
import torch
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn
from torch.testing import assert_close

from subflot.errors import SubflotError, UnknownName
from subflot.models import HARCNN, MODELS, FastText, Network, find
from subflot.models.mobilenet import InvertedResidual
from subflot.models.resnet import BasicBlock

ALL = sorted(MODELS)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def num_multiply_adds(model: nn.Module, example: Tensor) -> int:
    """Products in the convolutions and linear layers, for one example."""
    total = 0

    def count(layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        positions = output[0, 0].numel()
        total += cast(Tensor, layer.weight).numel() * positions

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model.eval()(example)
    for hook in hooks:
        hook.remove()
    return total


@dataclass(frozen=True)
class Row:
    """One line of a published table; `side` is the output's height and width at 32x32 input."""

    inputs: int
    outputs: int
    kernel: int
    side: int
    groups: int = 1
    bias: bool = False
    norm: bool = True

    @property
    def num_weights(self) -> int:
        return self.kernel**2 * self.inputs * self.outputs // self.groups

    @property
    def num_parameters(self) -> int:
        return self.num_weights + (self.bias + 2 * self.norm) * self.outputs


def classifier(inputs: int) -> Row:
    return Row(inputs, 10, 1, 1, bias=True, norm=False)


def vgg11_rows(norm: bool) -> list[Row]:
    sizes = [(3, 64, 32), (64, 128, 16), (128, 256, 8), (256, 256, 8)]
    sizes += [(256, 512, 4), (512, 512, 4), (512, 512, 2), (512, 512, 2)]
    convs = [Row(inputs, outputs, 3, side, bias=True, norm=norm) for inputs, outputs, side in sizes]
    return [*convs, classifier(512)]


def resnet18_rows() -> list[Row]:
    rows = [Row(3, 64, 7, 16)] + 4 * [Row(64, 64, 3, 8)]
    for inputs, outputs, side in [(64, 128, 4), (128, 256, 2), (256, 512, 1)]:
        rows += [Row(inputs, outputs, 3, side), Row(inputs, outputs, 1, side)]
        rows += 3 * [Row(outputs, outputs, 3, side)]
    return [*rows, classifier(512)]


def mobilenetv2_rows() -> list[Row]:
    rows = [Row(3, 32, 3, 16), Row(32, 32, 3, 16, groups=32), Row(32, 16, 1, 16)]
    # Every later block: inputs, outputs, side before and after.
    blocks = [(16, 24, 16, 8), (24, 24, 8, 8)]
    blocks += [(24, 32, 8, 4), (32, 32, 4, 4), (32, 32, 4, 4)]
    blocks += [(32, 64, 4, 2), (64, 64, 2, 2), (64, 64, 2, 2), (64, 64, 2, 2)]
    blocks += [(64, 96, 2, 2), (96, 96, 2, 2), (96, 96, 2, 2)]
    blocks += [(96, 160, 2, 1), (160, 160, 1, 1), (160, 160, 1, 1), (160, 320, 1, 1)]
    for inputs, outputs, before, after in blocks:
        hidden = 6 * inputs
        rows += [Row(inputs, hidden, 1, before), Row(hidden, hidden, 3, after, groups=hidden)]
        rows += [Row(hidden, outputs, 1, after)]
    return [*rows, Row(320, 1280, 1, 1), classifier(1280)]


TABLES = {
    "vgg11": vgg11_rows(norm=True),
    "vgg11-plain": vgg11_rows(norm=False),
    "mobilenetv2": mobilenetv2_rows(),
    "resnet18": resnet18_rows(),
}


@pytest.mark.parametrize("name", TABLES)
def test_parameters_equal_the_sum_over_the_published_table(name: str) -> None:
    assert num_parameters(find(name).model()) == sum(row.num_parameters for row in TABLES[name])


@pytest.mark.parametrize("name", TABLES)
def test_multiply_adds_at_32x32_follow_the_published_strides(name: str) -> None:
    network = find(name)
    by_hand = sum(row.num_weights * row.side**2 for row in TABLES[name])
    assert num_multiply_adds(network.model(), network.example()) == by_hand


@pytest.mark.parametrize(
    ("name", "count"), [("digit5cnn", 31_805_898), ("harcnn", 2_253_958), ("fasttext", 16_648_708)]
)
def test_parameters_equal_the_exact_count_of_the_paper(name: str, count: int) -> None:
    assert num_parameters(find(name).model()) == count


def test_digits_network_is_small_enough_for_a_laptop() -> None:
    # 16 (9 + 1 + 2) + 32 (9 * 16 + 1 + 2) + 128 (32 * 4 + 1) + 10 (128 + 1)
    assert num_parameters(find("digits-cnn").model()) == 192 + 4_704 + 16_512 + 1_290


def narrowed(model: nn.Module, width: float) -> nn.Module:
    """Keep the first channels everywhere, except of the input and of the classes."""
    model = deepcopy(model)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.Embedding)]

    def cut(tensor: Tensor, axis: int) -> Tensor:
        return tensor.narrow(axis, 0, max(1, math.ceil(width * tensor.shape[axis])))

    def cut_parameter(module: nn.Module, name: str, axis: int) -> None:
        setattr(module, name, nn.Parameter(cut(getattr(module, name).detach(), axis).clone()))

    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            cut_parameter(module, "weight", 0)
            cut_parameter(module, "bias", 0)
            module.running_mean = cut(cast(Tensor, module.running_mean), 0)
            module.running_var = cut(cast(Tensor, module.running_var), 0)
        elif isinstance(module, nn.Embedding):
            cut_parameter(module, "weight", 1)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            is_depthwise = isinstance(module, nn.Conv2d) and module.groups > 1
            if module is not layers[0] and not is_depthwise:
                cut_parameter(module, "weight", 1)
            if module is not layers[-1]:
                cut_parameter(module, "weight", 0)
                if module.bias is not None:
                    cut_parameter(module, "bias", 0)
            if is_depthwise:
                module.groups = module.weight.shape[0]
    return model


@pytest.mark.parametrize(
    ("name", "full", "mean"),
    [
        ("vgg11", 9.23, 4.33),
        ("vgg11-plain", 9.23, 4.33),
        ("mobilenetv2", 2.24, 1.07),
        ("resnet18", 11.18, 5.24),
    ],
)
def test_mean_size_over_the_four_rates_is_the_one_the_paper_prints(
    name: str, full: float, mean: float
) -> None:
    model = find(name).model()
    counts = [num_parameters(narrowed(model, width)) for width in (1, 0.75, 0.5, 0.25)]
    # The paper's means are of sizes already rounded: ResNet18's exact mean is 5.245 million.
    millions = [round(count / 1e6, 2) for count in counts]
    assert millions[0] == full
    assert round(sum(millions) / 4, 2) == mean


@pytest.mark.parametrize("name", ALL)
def test_forward_runs_at_other_widths(name: str) -> None:
    network = find(name)
    model = narrowed(network.model(), 0.25).eval()
    assert model(network.example(3)).shape == (3, network.num_classes)


@pytest.mark.parametrize("name", ALL)
def test_a_quarter_of_the_width_is_the_network_with_a_quarter_of_all_hidden_channels(
    name: str,
) -> None:
    network = find(name)
    build = cast(Callable[..., nn.Module], network.build)
    quarter = build(network.num_classes, width=0.25)
    shapes = {key: value.shape for key, value in quarter.state_dict().items()}
    cut = narrowed(network.model(), 0.25)
    assert shapes == {key: value.shape for key, value in cut.state_dict().items()}
    assert quarter.eval()(network.example(3)).shape == (3, network.num_classes)


@pytest.mark.parametrize("name", ALL)
def test_the_narrowest_network_has_one_channel_and_still_trains(name: str) -> None:
    network = find(name)
    model = cast(Callable[..., nn.Module], network.build)(network.num_classes, width=1e-6)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.Embedding)]
    shapes = [layer.weight.shape for layer in layers]
    assert {shape[0] for shape in shapes[1:-1]} == {1}
    assert shapes[0][1 if isinstance(layers[0], nn.Embedding) else 0] == 1
    model(network.example(4)).square().sum().backward()


def test_a_narrow_network_adds_where_the_full_one_does_and_nowhere_else() -> None:
    def added(width: float) -> list[bool]:
        build = cast(Callable[..., nn.Module], find("mobilenetv2").build)
        blocks = [m for m in build(10, width=width).modules() if isinstance(m, InvertedResidual)]
        return [block.is_residual for block in blocks]

    assert sum(added(1.0)) == 10  # Of seventeen: each but the first of its line in the table.
    assert added(0.01) == added(1.0)  # Here 64 and 96 channels are both one.


@pytest.mark.parametrize("width", [0.0, -1.0, math.nan, math.inf])
def test_a_width_that_leaves_nothing_is_one_clear_error(width: float) -> None:
    with pytest.raises(SubflotError, match="width is"):
        HARCNN(width=width)


@pytest.mark.parametrize("name", ALL)
def test_output_has_one_finite_logit_per_class(name: str) -> None:
    network = find(name)
    logits = network.model().eval()(network.example(3))
    assert logits.shape == (3, network.num_classes)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_number_of_classes_can_be_chosen(name: str) -> None:
    network = find(name)
    assert network.model(num_classes=7).eval()(network.example()).shape == (2, 7)


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_takes_part_in_training(name: str) -> None:
    network = find(name)
    model = network.model()
    model(network.example(4)).square().sum().backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


@pytest.mark.parametrize("name", ALL)
def test_evaluation_treats_each_example_by_itself(name: str) -> None:
    network = find(name)
    model = network.model().double().eval()
    example = network.example(3)
    example = example.double() if example.is_floating_point() else example
    assert_close(model(example)[1:2], model(example[1:2]))


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet18"])
def test_backbones_take_larger_images(name: str) -> None:
    model = find(name).model().eval()
    assert model(torch.ones(2, 3, 64, 64)).shape == (2, 10)


def test_features_of_the_small_networks_have_the_stated_shapes() -> None:
    shapes = {}
    for name in ("digit5cnn", "harcnn", "digits-cnn"):
        features = cast(nn.Module, find(name).model().features)
        shapes[name] = tuple(features(find(name).example(2)).shape)
    assert shapes == {
        "digit5cnn": (2, 128, 8, 8),
        "harcnn": (2, 64, 1, 26),
        "digits-cnn": (2, 32, 2, 2),
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mobilenetv2", [(0.2, (2, 1280))]), ("digit5cnn", [(0.5, (2, 3072))]), ("resnet18", [])],
)
def test_dropout_acts_where_the_network_is_said_to_have_it(
    name: str, expected: list[tuple[float, tuple[int, ...]]]
) -> None:
    network = find(name)
    model = network.model()
    seen = []

    def record(dropout: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((cast(nn.Dropout, dropout).p, tuple(output.shape)))

    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(record)
    model(network.example(2))
    assert seen == expected


# At the smaller width every block has one input and one output channel.
@pytest.mark.parametrize("width", [1.0, 0.003])
def test_ten_inverted_residuals_of_seventeen_add_their_input_at_any_width(width: float) -> None:
    model = narrowed(find("mobilenetv2").model(), width)
    blocks = [m for m in model.modules() if isinstance(m, InvertedResidual)]
    num_residual = 0
    for block in blocks:
        nn.init.zeros_(cast(Tensor, block.conv[-1].weight))
        first = cast(nn.Conv2d, block.conv[0])
        x = torch.randn(2, first.groups * first.weight.shape[1], 4, 4)
        out = block.eval()(x)
        if out.any():
            assert_close(out, x, **EXACT)
            num_residual += 1
    assert (num_residual, len(blocks)) == (10, 17)


def test_inverted_residual_projects_without_an_activation() -> None:
    out = InvertedResidual(4, 8, stride=1, expansion=6)(torch.randn(8, 4, 5, 5))
    assert out.min() < 0
    assert out.max() > 0


def test_mobilenet_clips_its_activations_at_six() -> None:
    block = InvertedResidual(4, 8, stride=1, expansion=6)
    assert block.conv[:3](100 * torch.randn(8, 4, 5, 5)).max() <= 6
    nn.init.constant_(cast(Tensor, block.conv[1].bias), 10)
    assert block.conv[:3](torch.randn(8, 4, 5, 5)).max() == 6


def test_basic_block_adds_its_input_before_the_last_activation() -> None:
    block = BasicBlock(4, 4, stride=1).eval()
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 4, 5, 5)
    assert_close(block(x), x.relu(), **EXACT)


@pytest.mark.parametrize("name", ["vgg11", "mobilenetv2", "resnet18"])
def test_convolutions_start_from_he_by_fan_out(name: str) -> None:
    convs = [m.weight for m in find(name).model().modules() if isinstance(m, nn.Conv2d)]
    largest = max(convs, key=torch.numel)
    fan_out = largest.shape[0] * largest[0, 0].numel()
    # Of the more than 400,000 weights drawn, so that one per cent is ten standard errors.
    assert_close(largest.std().item(), math.sqrt(2 / fan_out), rtol=0.01, atol=0.0)


@pytest.fixture
def fasttext() -> FastText:
    model = FastText(vocabulary=20, dim=8)
    nn.init.normal_(model.embedding.weight)  # also the padding's row, which must not matter
    return model


def test_fasttext_ignores_padding_wherever_it_stands(fasttext: FastText) -> None:
    tokens = torch.tensor([[3, 7, 7, 19], [5, 1, 2, 4]])
    padded = torch.tensor([[3, 0, 7, 7, 19, 0, 0], [0, 5, 1, 0, 0, 2, 4]])
    assert_close(fasttext(padded), fasttext(tokens), **FLOAT32)


def test_fasttext_is_linear_in_the_mean_of_its_real_tokens(fasttext: FastText) -> None:
    rows = fasttext.embedding.weight
    by_hand = fasttext.classifier(fasttext.hidden((rows[3] + 2 * rows[7]) / 3))
    assert_close(fasttext(torch.tensor([[3, 7, 7, 0]]))[0], by_hand, **FLOAT32)


def test_fasttext_reads_a_text_of_padding_alone_as_zeros(fasttext: FastText) -> None:
    logits = fasttext(torch.tensor([[0, 0, 0], [4, 0, 0]]))
    assert_close(logits[0], fasttext.classifier(fasttext.hidden(torch.zeros(8))), **FLOAT32)
    logits.sum().backward()
    gradient = fasttext.embedding.weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert gradient[4].any()
    assert not gradient[0].any()


@pytest.mark.parametrize("name", ALL)
def test_example_is_the_same_every_time_and_leaves_the_global_stream_alone(name: str) -> None:
    network = find(name)
    before = torch.get_rng_state()
    first = network.example(3)
    torch.manual_seed(1)
    assert_close(network.example(3), first, **EXACT)
    torch.set_rng_state(before)
    network.example()
    assert_close(torch.get_rng_state(), before, **EXACT)
    assert first.shape == (3, *network.input_shape)
    assert not torch.equal(first[0], first[1])


def test_example_of_a_text_network_is_tokens_within_the_vocabulary() -> None:
    network = Network(FastText, 4, (1000,), 5, "tiny vocabulary")
    assert sorted(set(network.example().flatten().tolist())) == [1, 2, 3, 4]


def test_unknown_model_is_an_error_that_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"unknown model `resnet-18`[^?]*did you mean `resnet18`"):
        find("resnet-18")


def test_names_and_summaries_fit_one_line_of_a_listing() -> None:
    for name, network in MODELS.items():
        assert name == name.lower()
        assert 0 < len(network.summary) < 80
        assert "\n" not in network.summary
