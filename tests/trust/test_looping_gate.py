"""A signal ends the program even where a network never comes back: Python cannot run its handler then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import ficgan.errors
ficgan.errors.PATIENCE = 2.0
print("ready", flush=True)
from ficgan.cli.deid import deid
deid()
"""


def looping_recognizer(path: Path) -> None:
    """A network with the inputs of a recogniser that counts to 2⁶²."""
    from onnx import TensorProto, helper, save

    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["going"]), helper.make_node("Add", ["sum", "one"], ["more"])],
        "body",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 8]),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 8]),
        ],
    )
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["start"]),
        helper.make_node("Loop", ["times", "always", "start"], ["y"], body=body),
    ]
    constants = [
        helper.make_tensor("w", TensorProto.FLOAT, [3, 8], np.ones(24)),
        helper.make_tensor("one", TensorProto.FLOAT, [1, 8], np.ones(8)),
        helper.make_tensor("times", TensorProto.INT64, [], [1 << 62]),
        helper.make_tensor("always", TensorProto.BOOL, [], [True]),
    ]
    graph = helper.make_graph(
        nodes,
        "loop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 112, 112])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        constants,
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gate_that_loops_is_ended(number: int, tmp_path: Path) -> None:
    looping_recognizer(tmp_path / "loop.onnx")
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    run = subprocess.Popen(
        [
            sys.executable,
            "-c",
            CODE,
            str(tmp_path / "a.png"),
            "-o",
            str(tmp_path / "out"),
            "--mode",
            "solid",
            "--recognizer",
            f"onnx:{tmp_path / 'loop.onnx'}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        assert run.stdout is not None and run.stderr is not None and run.stdout.readline() == b"ready\n"
        time.sleep(1)
        while _cpu_seconds(run.pid) < 4:  # far beyond the imports
            time.sleep(0.5)
        run.send_signal(number)
        assert run.wait(240) == 130
        assert b"a step that could not be stopped was ended" in run.stderr.read()
    finally:
        run.kill()
        run.communicate()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


STEADY = """
import os, signal, threading, time
from ficgan import errors
from ficgan.cli._console import handle_errors
errors.PATIENCE = 0.5
@handle_errors
def work():
    with errors.stop_asked() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(20): time.sleep(0.1)  # the handler ran: the step may take its time
        assert asked.is_set()
    print("finished", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
work()
"""


def test_a_step_that_python_can_end_takes_its_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEADY],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "finished\n", "Interrupted.\n")
