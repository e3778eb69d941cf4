"""Cost of a large identity bank on this machine: to open, to ask, to draw from; beside the cost of reading the rows.

    python tools/bench_bank.py [--codes 1000000] [--k 3000] [--seconds 3] [--folder DIR]

Makes a bank of that many made-up codes of 512 numbers with 40 attributes in a temporary folder (1.1 GB at a million;
the file has just been written, so the operating system holds it in memory) and measures it in a fresh process. The
floor of a draw reads as many rows with `np.take` and does nothing with them; draw and floor are timed in turn, so that
a change of the machine's speed meets both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ficgan.cli._console import handle_errors
from ficgan.identity import IdentityBank
from ficgan.identity.ksame import draw_members, keyed_generator

NUMBERS, ATTRIBUTES = 512, 40
QUERIES = ("A0", "A0,-A1", "A0,-A1,-A2,A3,-A4")
GROUP = "-A0"
"""Each attribute is had by 30 % of the people, independently: this group is the other 70 %."""


def make(path: Path, codes: int) -> None:
    """Write the made-up bank, a piece at a time: normal codes with a different spread in each place."""
    rng = np.random.default_rng(0)
    table = np.empty((codes, NUMBERS), np.float16)
    spread = np.linspace(0.2, 2, NUMBERS, dtype=np.float32)
    for begin in range(0, codes, 10_000):
        part = table[begin : begin + 10_000]
        part[:] = rng.standard_normal(part.shape, np.float32) * spread
    attributes = (rng.random((codes, ATTRIBUTES), np.float32) < 0.3).astype(np.uint8)
    IdentityBank(table, attributes, tuple(f"A{i}" for i in range(ATTRIBUTES))).save(path)


def resident() -> float:
    """Memory of this process in MB, pages of mapped files included; NaN where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return float("nan")


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begin)


def row(name: str, times: list[float], floor: list[float] | None = None) -> None:
    """One line of the table: median and 95th percentile; the first call alone, as it fills caches."""
    first, rest = times[0], sorted(times[1:]) or times
    middle, high = statistics.median(rest), rest[int(0.95 * (len(rest) - 1))]
    text = f"| {name} | {first:.2f} | {middle:.2f} | {high:.2f} |"
    if floor:
        bare = statistics.median(floor[1:] or floor)
        print(f"{text} {bare:.2f} | {middle / bare:.1f} |", flush=True)
    else:
        print(f"{text} | |", flush=True)


def draws(bank: IdentityBank, k: int, seconds: float, attributes: str | None, psi: float) -> None:
    times: list[float] = []
    floor: list[float] = []
    group = None if attributes is None else bank.query(attributes)
    size = len(bank) if group is None else len(group)
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        key = f"{attributes} {psi} {len(times)}"
        members = draw_members(size, k, keyed_generator(0, bank.digest, "floor " + key, k, ""))
        members = members if group is None else group[members]
        floor.append(milliseconds(lambda members=members: np.take(bank.codes, members, axis=0)))
        times.append(milliseconds(lambda key=key: bank.k_same(k, key, attributes=attributes, psi=psi)))
    row(f"draw {k} of {size:,}, ψ = {psi:g}", times, floor)


def measure(path: Path, k: int, seconds: float) -> None:
    before = resident()
    begin = time.perf_counter()
    bank = IdentityBank.load(path)
    opened = 1e3 * (time.perf_counter() - begin)
    print(f"Bank of {len(bank):,} codes, {path.stat().st_size / 1e6:.0f} MB: opened in {opened:.1f} ms, ", end="")
    print(f"memory +{resident() - before:.1f} MB, digest {'' if bank.verified else 'not '}verified.\n")
    print("| ms | first | median | p95 | floor | ratio |\n|-|-|-|-|-|-|")
    for text in QUERIES:
        times = [milliseconds(lambda text=text: bank.query(text)) for _ in range(20)]
        row(f"query of {text.count(',') + 1} attributes, {len(bank.query(text)):,} people", times)
    bank.k_same(2, "the seed is stretched once", seed=0)
    for attributes in (None, GROUP[1:], GROUP):
        for psi in (0.0, 0.6):
            if k <= bank.eligible(attributes):
                draws(bank, k, seconds, attributes, psi)
    row("verify", [milliseconds(bank.verify) for _ in range(2)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=int, default=1_000_000)
    parser.add_argument("--k", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each kind of draw")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--bank", type=Path, help="measure this file of the tool's own making, make none")
    options = parser.parse_args()
    if options.bank:
        measure(options.bank, options.k, options.seconds)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "bank.safetensors"
        make(path, options.codes)
        command = [sys.executable, __file__, "--bank", str(path)]
        subprocess.run([*command, "--k", str(options.k), "--seconds", str(options.seconds)], check=True)


if __name__ == "__main__":
    handle_errors(main)()
