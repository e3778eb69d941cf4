"""tools/bench_ops.py, bench_train.py and bench.py: what they count, against counts by hand, and that they run."""

from __future__ import annotations

import importlib
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ficgan import pretrained
from ficgan.config import load_config
from ficgan.errors import FicganError

TOOLS = Path(__file__).resolve().parent.parent / "tools"
CPU = torch.device("cpu")
FLOAT = 4  # bytes
SMALL = [
    "model.resolution=16",
    "model.channel_base=128",
    "model.channel_max=8",
    "model.id_dim=16",
    "model.w_dim=16",
    "model.spatial_channels=4",
    "discriminator.channel_base=128",
    "discriminator.channel_max=8",
    "optimizer.batch=4",
    "loss.r1_interval=4",
]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module


@pytest.mark.parametrize("name", sorted(path.stem for path in TOOLS.glob("[!_]*.py")))
def test_every_tool_finds_what_it_imports(tool: Callable[[str], ModuleType], name: str) -> None:
    assert callable(tool(name).main)


@pytest.mark.parametrize(
    "line",
    [
        "bench_bank --bank none",
        "bench_pointcloud --scan none",
        "make_networks gate none",
        "make_mesh none",
        "stress_films --mode none",
        "fuzz --kinds none",
        "make_sbom -o none/x.json",
        "guessing_attack none",
    ],
)
def test_wrong_input_ends_a_tool_in_a_sentence(
    line: str,
    tool: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *arguments = line.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name, *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(TOOLS / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().err
    assert stopped.value.code in (1, 2, 3) and "none" in said and "Traceback" not in said
    assert not list(tmp_path.iterdir())


# --- counting -------------------------------------------------------------------------------------------------------


def executed(tool: Callable[[str], ModuleType], work: Callable[[], object]) -> list[Any]:
    with tool("_counting").Counter() as counter:
        work()
    return counter.executed


def layer(tool: Callable[[str], ModuleType], name: str, work: Callable[[], object]) -> Any:
    """The one operator of this name that `work` runs."""
    (found,) = [e for e in executed(tool, work) if e.operator == f"aten::{name}"]
    return found


def loop_conv_flops(x: tuple[int, ...], w: tuple[int, ...], stride: int, padding: int, groups: int) -> int:
    """Every multiplication and addition of a convolution, one by one; taps in the padding count."""
    flops = 0
    height = (x[2] + 2 * padding - w[2]) // stride + 1
    width = (x[3] + 2 * padding - w[3]) // stride + 1
    for _image in range(x[0]):
        for _out in range(w[0]):
            for _position in range(height * width):
                for _in in range(x[1] // groups):
                    for _tap in range(w[2] * w[3]):
                        flops += 2
    return flops


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 2), (1, 6)])
def test_flops_and_bytes_of_a_convolution_and_its_gradients(
    tool: Callable[[str], ModuleType], stride: int, groups: int
) -> None:
    shape, weights = (2, 6, 5, 4), (12, 6 // groups, 3, 3)
    x, w = torch.randn(shape, requires_grad=True), torch.randn(weights, requires_grad=True)
    y = F.conv2d(x, w, stride=stride, padding=1, groups=groups)
    flops = loop_conv_flops(shape, weights, stride, 1, groups)
    forward = layer(tool, "convolution", lambda: F.conv2d(x, w, stride=stride, padding=1, groups=groups))
    assert forward.flops == flops
    assert forward.bytes == FLOAT * (x.numel() + w.numel() + y.numel())
    assert forward.is_layer
    both = layer(tool, "convolution_backward", lambda: torch.autograd.grad(y, (x, w), torch.ones_like(y), True))
    assert both.flops == 2 * flops
    # one() read once as the gradient, input and weight read, their gradients written
    assert both.bytes == FLOAT * (y.numel() + 2 * x.numel() + 2 * w.numel())
    one = layer(tool, "convolution_backward", lambda: torch.autograd.grad(y, x, torch.ones_like(y), True))
    assert one.flops == flops


def test_a_transposed_convolution_costs_what_the_convolution_costs_whose_gradient_it_is(
    tool: Callable[[str], ModuleType],
) -> None:
    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 3, 3, 3)
    found = layer(tool, "convolution", lambda: F.conv_transpose2d(x, w, stride=2, padding=1))
    # Each of 2·4·25 inputs is scattered to 3 channels of 9 taps.
    assert found.flops == 2 * (2 * 4 * 25) * 3 * 9


def test_a_small_net_by_hand(tool: Callable[[str], ModuleType]) -> None:
    """conv 3→8, ReLU, mean over pixels, linear 8→5: forward and backward, all counted by hand."""
    batch, side = 4, 6
    x = torch.randn(batch, 3, side, side)
    w, v = torch.randn(8, 3, 3, 3, requires_grad=True), torch.randn(5, 8, requires_grad=True)

    def step() -> None:
        y = F.relu(F.conv2d(x, w, padding=1)).mean((2, 3)) @ v.t()
        y.sum().backward()

    found = executed(tool, step)
    conv = 2 * batch * side * side * 8 * 3 * 9
    linear = 2 * batch * 8 * 5
    # The image needs no gradient: the convolution's backward is that by its weight; the linear layer has both.
    assert sum(e.flops for e in found) == 2 * conv + 3 * linear
    # 2 for the convolution; for the product forward, by v and by its input 3
    assert sum(e.is_layer for e in found) == 5
    by_name = {e.operator.removeprefix("aten::"): e for e in found if not e.operator.endswith("mm")}
    pixels = batch * 8 * side * side
    assert by_name["relu"].bytes == FLOAT * 2 * pixels
    assert by_name["threshold_backward"].bytes == FLOAT * 3 * pixels
    assert by_name["mean"].bytes == FLOAT * (pixels + batch * 8)


def test_bytes_of_views_copies_and_writes_in_place(tool: Callable[[str], ModuleType]) -> None:
    x, y = torch.randn(10, 20), torch.randn(10, 20)

    def bytes_of(work: Callable[[], object]) -> float:
        return sum(e.bytes for e in executed(tool, work))

    n = FLOAT * x.numel()
    assert bytes_of(lambda: x.view(20, 10).t()[1:]) == 0
    assert bytes_of(lambda: torch.empty(10, 20)) == 0
    assert bytes_of(lambda: x.add_(1)) == 2 * n
    assert bytes_of(lambda: x.mul_(y)) == 3 * n
    assert bytes_of(lambda: x.copy_(y)) == 2 * n
    assert bytes_of(lambda: x.zero_()) == n
    assert bytes_of(lambda: torch.add(x, y, out=torch.empty(10, 20))) == 3 * n
    assert bytes_of(lambda: y * y) == 2 * n
    assert bytes_of(lambda: x + torch.ones(1).expand(10, 20)) == 2 * n + 2 * FLOAT  # `ones` writes its one element
    assert bytes_of(lambda: x.to(torch.float16)) == 1.5 * n
    assert bytes_of(lambda: torch._foreach_mul_([x, y], 2.0)) == 4 * n


def test_floors_take_the_slower_of_arithmetic_and_memory_for_each_layer(tool: Callable[[str], ModuleType]) -> None:
    counting = tool("_counting")

    def one(kind: str, flops: float, moved: float, dtype: torch.dtype = torch.float32) -> Any:
        return counting.Executed("aten::mm", kind, dtype, flops, moved)

    layers = [
        one(counting.CONVOLUTIONS, 100.0, 10.0),  # 10 s of arithmetic, 2 s of memory
        one(counting.V_CONVOLUTIONS, 20.0, 30.0),  # 2 s, 6 s
        one(counting.CONVOLUTIONS, 100.0, 5.0, torch.float16),  # 1 s, 1 s
        one(counting.RESAMPLING, 1000.0, 1000.0),  # no layer
        one(counting.ELEMENTWISE, 0.0, 1000.0),
    ]
    floors = counting.floors(layers, {torch.float32: 10.0, torch.float16: 100.0}, 5.0)
    assert (floors.arithmetic, floors.roofline) == (13.0, 17.0)


def test_a_region_holds_its_forward_and_backward_and_nothing_else(tool: Callable[[str], ModuleType]) -> None:
    counting = tool("_counting")
    scopes = counting.Scopes()
    region = scopes.region(lambda x: (x.exp(), [x.sin(), x.tanh()]), counting.V)
    x = torch.randn(5, requires_grad=True)

    def run(function: Callable[..., Any]) -> torch.Tensor:
        y = x.sqrt().nan_to_num()
        first, maps = function(y)
        (gradient,) = torch.autograd.grad((first.cos() + maps[0] * maps[1]).sum() + y.log2().sum(), x)
        return gradient

    plain = run(lambda x: (x.exp(), [x.sin(), x.tanh()]))
    with counting.Counter(scopes) as counter:
        marked = run(region)
    torch.testing.assert_close(marked, plain, equal_nan=True)
    assert scopes.current is None
    inside = {e.operator for e in counter.executed if e.kind == counting.V}
    assert {"aten::exp", "aten::sin", "aten::tanh", "aten::tanh_backward"} <= inside
    outside = {e.operator for e in counter.executed if e.kind != counting.V}
    assert {"aten::sqrt", "aten::log2", "aten::sum"} <= outside and "aten::tanh_backward" not in outside


def test_the_account_sorts_own_times_by_scope_and_operator(tool: Callable[[str], ModuleType]) -> None:
    counting = tool("_counting")

    def event(name: str, begin: int, own: float, *, device: str = "CPU", kernels: float = 0.0) -> Any:
        span = SimpleNamespace(start=begin, end=begin + 10, elapsed_us=lambda: kernels or own)
        return SimpleNamespace(
            name=name,
            thread=1,
            time_range=span,
            self_cpu_time_total=own,
            self_device_time_total=kernels,
            device_type=getattr(torch.autograd.DeviceType, device),
            is_user_annotation=name.startswith("bench: "),
        )

    events = [
        event("aten::convolution_backward", 0, 5, kernels=50),
        event("aten::mul", 10, 7, kernels=70),
        event("bench: " + counting.V, 20, 1),
        event("aten::mm", 21, 3, kernels=30),
        event("aten::exp", 22, 2, kernels=20),
        event("aten::copy_", 40, 4, kernels=40),
        event("aten::view", 50, 9),
        event("MulBackward0", 60, 9),
        event("triton_poi_fused", 70, 0, device="CUDA", kernels=225),
    ]
    found = counting.sort(events, 40e-6, cuda=False).seconds
    us = {kind: round(seconds * 1e6) for kind, seconds in found.items()}
    assert us == {
        counting.CONVOLUTIONS: 5,
        counting.ELEMENTWISE: 7,
        counting.V_CONVOLUTIONS: 3,
        counting.V: 2,
        counting.COPIES: 4,
        counting.OVERHEAD: 19,
    }
    on_gpu = counting.sort(events, 300e-6, cuda=True).seconds
    assert round(on_gpu[counting.COMPILED] * 1e6) == 15  # 225 µs of kernels, 210 of them an operator's
    assert round(on_gpu[counting.OVERHEAD] * 1e6) == 75


# --- timing ---------------------------------------------------------------------------------------------------------


def test_rounds_are_interleaved_and_ratios_taken_within_them(tool: Callable[[str], ModuleType]) -> None:
    timing = tool("_timing")
    order: list[str] = []
    works = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    rounds = timing.interleaved(works, CPU, 0.0, warm_up=1)
    assert len(rounds) == timing.LEAST_ROUNDS and order == ["a", "b"] * (timing.LEAST_ROUNDS + 1)
    slow_machine = [{"a": 1.0, "b": 2.0}, {"a": 10.0, "b": 20.0}, {"a": 3.0, "b": 6.0}]
    assert timing.median(slow_machine, lambda r: r["b"] / r["a"]) == 2.0


def test_the_copy_moves_the_bytes_it_says(tool: Callable[[str], ModuleType]) -> None:
    work = tool("_timing").copy_of(2e6, CPU)
    assert sum(e.bytes for e in executed(tool, work)) == 2e6


def test_the_rates_count_what_they_run(tool: Callable[[str], ModuleType]) -> None:
    for flops, work in tool("_timing").arithmetic(torch.float32, CPU).values():
        assert sum(e.flops for e in executed(tool, work)) == flops


# --- bench_ops ------------------------------------------------------------------------------------------------------


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_bench_ops_prints_a_row_for_each_op_and_layout(
    tool: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tool("bench_ops")
    assert bench.main(["--device", "cpu", "--size", "0.02", "--seconds", "0", "--dtype", "float32", "float64"]) == 0
    head, *rows = cells(capsys.readouterr().out)
    assert [row[:3] for row in rows] == [
        [name, dtype, layout] for dtype in ("float32", "float64") for layout in bench.LAYOUTS for name in bench.NAMES
    ]
    for row in rows:
        assert len(row) == len(head)
        assert float(row[3]) > 0 and re.fullmatch(r"\d+\.\d+ \(\d+%\)", row[5])
        assert row[4] == row[6] == row[-1] == "–"  # neither kernels, compilation nor bars here


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("bias_act", 2),
        ("bias_act forward+backward", 5),
        ("upfirdn2d up 2", 5),
        ("upfirdn2d down 2", 1.25),
        ("upfirdn2d filter", 2),
        ("scale_bias_lrelu", 2),
        ("adain", 2),
        ("adain forward+backward", 5),
    ],
)
def test_compulsory_bytes_are_inputs_and_outputs_once(
    tool: Callable[[str], ModuleType], name: str, factor: float
) -> None:
    case = tool("bench_ops").make(name, 1.0, torch.float32, "channels_last", CPU)
    size = case.inputs[0].nbytes
    assert size >= 2**20 and case.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert factor * size <= case.bytes < factor * size + 0.01 * size  # biases and styles are small
    if not case.backward:
        output = case.op(*case.inputs, impl="ref")
        seen = [output.nbytes, *(t.nbytes for t in case.inputs), 16 if name.startswith("upfirdn2d") else 0]
        assert case.bytes == sum(seen)


def test_a_variant_that_computes_something_else_is_not_timed(tool: Callable[[str], ModuleType]) -> None:
    bench = tool("bench_ops")
    case = bench.make("bias_act", 0.02, torch.float32, "contiguous", CPU)
    works = bench.works_of(case, False, CPU)
    bench.check(case, works)
    with pytest.raises(FicganError, match="compiled differs"):
        bench.check(case, works | {"compiled": lambda: [works["reference"]()[0] * 1.01]})


@pytest.mark.parametrize(
    ("name", "share", "ratio", "verdict"),
    [
        ("adain", 0.71, None, "pass"),
        ("adain", 0.69, None, "FAIL: < 70% of copy"),
        ("bias_act", 0.9, 1.04, "pass"),
        ("bias_act forward+backward", 0.9, 1.06, "FAIL: 1.06× compile"),
        ("upfirdn2d up 2", 0.9, 1.01, "FAIL: 1.01× compile"),
        ("upfirdn2d up 2", 0.6, 0.5, "FAIL: < 70% of copy"),
        ("upfirdn2d up 2", 0.9, None, "FAIL: not compared with compile"),
    ],
)
def test_bars(tool: Callable[[str], ModuleType], name: str, share: float, ratio: float | None, verdict: str) -> None:
    bench = tool("bench_ops")
    shares = {"reference": 0.1, "native": share}
    result = bench.Result(name, dict.fromkeys(shares, 1.0), shares, ratio, {})
    assert bench.verdict(result, True, 256) == verdict
    assert bench.verdict(result, True, 255) == bench.verdict(result, False, 256) == "–"


@pytest.mark.parametrize("wrong", [["--op", "nonsense"], ["--dtype", "int8"], ["--size", "0"]])
def test_bench_ops_refuses(
    tool: Callable[[str], ModuleType], wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool("bench_ops").main(["--device", "cpu", *wrong]) == 2
    assert wrong[1] in capsys.readouterr().err


# --- bench_train ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bench_train_prints_rows_for_batches_and_an_account(
    tool: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tool("bench_train")
    arguments = ["--device", "cpu", "--seconds", "0", "--steps", "1", "--top", "3", "--batch", "4", "6"]
    assert bench.main([*arguments, *SMALL]) == 0
    tables = [cells(part) for part in capsys.readouterr().out.split("\n\n")]
    head, *rows = next(table for table in tables if table and "s/kimg" in table[0])
    assert [row[:3] for row in rows] == [["tiny", "16", "4"], ["tiny", "16", "6"]]
    for row in rows:
        values = [float(cell) for cell in row[3:]]
        assert len(row) == len(head) and min(values) > 0
        assert values[3] >= values[2]  # roofline and arithmetic floor
    accounts = [
        table for table in tables if table and table[0][0] == "class" and "share" in table[0] and len(table[0]) > 4
    ]
    assert len(accounts) == 2
    for account in accounts:
        assert sum(float(line[2].rstrip("%")) for line in account[1:]) == pytest.approx(100, abs=0.5)
        assert {"V", "resampling", "convolutions and matrix products"} <= {line[0] for line in account[1:]}


def test_the_step_is_the_loops_own_and_counting_changes_nothing(tool: Callable[[str], ModuleType]) -> None:
    """Two steps, counted or not, end at the same weights; R1 takes more arithmetic; nothing stays patched."""
    from ficgan.ops import resample
    from ficgan.training.state import Augment

    bench, counting = tool("bench_train"), tool("_counting")
    config = load_config("tiny", [*SMALL, "augment.adaptive=true"])
    before = resample.compute, Augment.__call__
    weights = []
    for counted in (False, True):
        with bench.trainer(config, "cpu", [], 0.5) as subject:
            if counted:
                (plain_share, plain), (r1_share, r1) = bench.count(subject)
            else:
                subject.step(r1=False)
                subject.step(r1=True)
            weights.append([p.detach().clone() for p in subject.run.state.ema.model.parameters()])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other)
    assert (resample.compute, Augment.__call__) == before
    assert (plain_share, r1_share) == (0.75, 0.25)
    assert sum(e.flops for e in r1) > sum(e.flops for e in plain)
    kinds = {e.kind for e in plain}
    assert kinds == set(counting.CLASSES) - {counting.COMPILED, counting.OVERHEAD}


def test_flops_of_a_step_grow_with_the_batch(tool: Callable[[str], ModuleType]) -> None:
    """Layers of images cost in proportion to the batch; only the kernels of each layer do not grow."""
    bench = tool("bench_train")
    found = []
    for batch in (4, 8):
        config = load_config("tiny", [*SMALL, f"optimizer.batch={batch}"])
        with bench.trainer(config, "cpu", [], None) as subject:
            (_, plain), _ = bench.count(subject)
        found.append(sum(e.flops for e in plain if "convolution" in e.operator and e.is_layer))
    assert found[1] == 2 * found[0]


def test_bench_train_refuses(tool: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("bench_train").main(["--device", "cpu", "--config", "tinny"]) == 2
    assert "tinny" in capsys.readouterr().err


# --- bench.py -------------------------------------------------------------------------------------------------------


def test_bench_times_a_network(
    tool: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--config tiny --batch 2 --precision float32 --seconds 0"
    monkeypatch.setattr("sys.argv", ["bench.py", *options.split()])
    tool("bench").main()
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| float32")]
    assert all(float(cell) > 0 for cell in row.strip("| ").split("|")[1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--checkpoint", str(pretrained.path("model"))], "this needs a network: give a checkpoint of"),
        (["--checkpoint", "nowhere.safetensors"], "nowhere.safetensors does not exist"),
        (["--config", "tinny"], "tinny"),
    ],
)
def test_bench_refuses(
    tool: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.py", *options])
    with pytest.raises(SystemExit, match=said) as caught:
        tool("bench").main()
    assert "\n" not in str(caught.value)


def test_bars_of_the_comparison_with_deface(tool: Callable[[str], ModuleType]) -> None:
    bench = tool("bench_deface")
    ours, unverified, blurred = bench.OPTIONS
    costs = {"deface": [(10.0, 9.0, 200.0)] * 3, ours: [(15.0, 1, 1), (14.0, 4, 3), (90.0, 9, 2)]}
    middle = bench.medians(costs)
    assert middle == {"deface": (10.0, 9.0, 200.0), ours: (15.0, 4, 2)}
    middle |= {unverified: (10.1, 1.0, 400.0), blurred: (1.0, 1.0, 477.0)}
    found = bench.bars({"folder": middle, "film": middle}, 401_000_000, {ours: 0, unverified: 2})
    rows = cells(bench.verdicts(found))
    assert [row[3] for row in rows[1:]] == ["met", "missed", "missed", "missed", "met", "met", "missed", "missed"]
    assert [row[1] for row in rows[1:4]] == ["1.50", "1.01", "500.17"], "477 MiB are 500.17 MB"
    assert cells(bench.table(middle, "folder"))[1][1:6] == [ours, "15.0", "4.0", "1.50", "0.44"]
