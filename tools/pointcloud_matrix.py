"""The point-cloud thesis' whole matrix, 6 anonymisers × 35 degrees, on scans, morphs of scans, or made heads.

    python tools/pointcloud_matrix.py --scans FOLDER -o OUT             the scans in FOLDER
    python tools/pointcloud_matrix.py --morphs FOLDER -o OUT            200 people who do not exist, from the scans
    python tools/pointcloud_matrix.py -o OUT [--people 12] [--small]    heads made of formulas

Writes OUT/results.json, OUT/report.html, figures and tables. A run that was interrupted goes on where it was. Further
settings are KEY=VALUE, such as `recognisers=[onnx:arcface.onnx]` or `attack.epochs=250`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from ficgan.errors import FicganError
from ficgan.lab.clouds import CloudStudyConfig, run_cloud_study
from ficgan.lab.clouds.report import write_cloud_report
from ficgan.lab.clouds.tables import summary


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--scans", type=Path, help="folder of PERSON_EXPRESSION.ply")
    source.add_argument("--morphs", type=Path, help="folder of scans whose morphs are the people")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--people", type=int, help="synthetic ones")
    parser.add_argument("--small", action="store_true", help="five degrees, 12 people")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    changes = list(given.settings)
    if given.scans:
        changes += ["synthetic=null", f"clouds={given.scans}", f"title=Anonymised scans of {given.scans.name}"]
    if given.morphs:
        changes.append(f"synthetic.scans={given.morphs}")
    if given.people:
        changes.append(f"synthetic.people={given.people}")
    begun = time.monotonic()

    def told(done: int, total: int, what: str) -> None:
        if what:
            print(f"{time.monotonic() - begun:7.0f} s  {done}/{total}  {what}", file=sys.stderr, flush=True)

    try:
        config = CloudStudyConfig.read("pointcloud-small" if given.small else "pointcloud", changes)
        results = run_cloud_study(config, given.out, jobs=given.jobs, progress=told)
        page = write_cloud_report(results, given.out)[0]
    except FicganError as error:
        print(error, file=sys.stderr)
        return 1
    for row in summary(results):
        print("  ".join(f"{key}: {value}" for key, value in row.items()))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
