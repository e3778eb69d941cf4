"""`ficgan-train`: train the model."""

from __future__ import annotations

from pathlib import Path

import click

from ficgan.cli._data import DataCommand, data_option
from ficgan.cli._errors import handle_errors

__all__ = ["train"]


@click.command(cls=DataCommand)
@click.argument("config")
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@data_option
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder of the run; the same folder again resumes it."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--start", type=click.Path(path_type=Path), help="State of another run whose weights to begin from.")
@click.option("--labels", type=click.Path(path_type=Path), help="Label CSV with a `split` column.")
@click.option("--split", help="Use only images of this split.")
@click.option("--max-seconds", type=float, help="Save and stop after so many seconds; the same command resumes.")
@click.option("--progress", type=click.Choice(["auto", "text", "none"]), default="auto", show_default=True)
@click.option("--dry-run", is_flag=True, help="Check the configuration, print it and stop.")
@handle_errors
def train(
    config: str,
    overrides: tuple[str, ...],
    data: tuple[Path, ...],
    out: Path,
    device: str,
    start: Path | None,
    labels: Path | None,
    split: str | None,
    max_seconds: float | None,
    progress: str,
    dry_run: bool,
) -> None:
    """Train FICGAN with CONFIG (a name in configs/, such as tiny, or a YAML path) and OVERRIDES (key=value).

    The same command again resumes the run. Several GPUs: torchrun --nproc-per-node N -m ficgan.cli.train …
    """
    from ficgan.config import load_config

    settings = load_config(config, overrides)
    if dry_run:
        click.echo(settings.model_dump_json(indent=2))
        return
    from ficgan.training import train as run

    network = run(
        settings, data, out, device=device, start=start, labels=labels, split=split, progress=progress,
        max_seconds=max_seconds,
    )  # fmt: skip
    click.echo(str(network))


if __name__ == "__main__":
    train()
