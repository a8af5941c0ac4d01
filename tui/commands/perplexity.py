"""`kvrewind perplexity`: what the precision of the KV cache costs, by context length."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ...engine.config import EngineConfig
from ...engine.kv_dtype import layer_dtypes
from ...engine.llm import open_model
from ...engine.models import LoadedModel
from ...engine.perplexity import Measured, Plan, WeightsDtype, config_for, measure, standard_text
from ...engine.runner import ModelCard
from ...recorder.errors import BadInput, BadOutput, OutputExists
from ..console import err, out, print_json, say
from ..options import Count, Format
from ..presenters.perplexity import INSTALL_PLOT, Compared, can_plot, compared, plot

if TYPE_CHECKING:
    from ...engine.transformers_runner import TransformersRunner

LENGTHS = "512,1024,2048,4096,8192"
SETTINGS = ("bfloat16", "int8", "int4")
OWN = "auto"
"""The setting that the others are compared with: the data type of the model."""

STANDARD_TEXT = "pydoc_data.topics"


def perplexity(
    *,
    model: str = "smollm2",
    kv_dtype: Annotated[Sequence[str], Parameter(negative=())] = SETTINGS,
    lengths: str = LENGTHS,
    text: Path | None = None,
    windows: Count = 2,
    last: Count = 256,
    plot_file: Annotated[Path | None, Parameter(name="--plot")] = None,
    device: str = "cpu",
    dtype: WeightsDtype = "float32",
    format: Format = "text",
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Measure what the precision of the KV cache costs, by context length.

    Windows of a text are computed in chunks through the paged pool, so that every key and value is
    read as the cache keeps it. All settings and lengths predict the same tokens, the last of each
    window; a setting is compared with the cache in the model's own data type at the same length.
    Twice the standard error of the difference stands behind it.

    For example:

        kvrewind perplexity --kv-dtype int8 --kv-dtype int4

        kvrewind perplexity --kv-dtype int8 --lengths 512,2048 --windows 8 --plot int8.svg

    Parameters
    ----------
    model
        smollm2, canary, or the path of a transformers model.
    kv_dtype
        float16, bfloat16, int8, int4, or a comma list with one a layer; may be repeated.
    lengths
        Context lengths in tokens, separated by commas.
    text
        A text in UTF-8; without it, the language reference that comes with Python.
    windows
        How many stretches of the text, spread evenly over it.
    last
        How many tokens are predicted in each window.
    plot_file
        An SVG file to draw the plot into.
    device
        cpu, cuda, or auto.
    dtype
        Data type of the weights: float32, bfloat16, float16.
    format
        text, or json: one JSON value and nothing else.
    force
        Write over an existing plot.
    """
    plan = Plan(lengths=_numbers(lengths), last=last, windows=windows)
    settings = list(dict.fromkeys(setting for setting in kv_dtype if setting != OWN))
    configs = [config_for(s, plan, device=device, dtype=dtype) for s in (OWN, *settings)]
    _refuse_plot(plot_file, force=force)
    source = standard_text() if text is None else _read(text)
    loaded = open_model(model, configs[0])
    if not isinstance(loaded, LoadedModel):
        raise BadInput(
            f"--model {model} has no weights and so no perplexity; take smollm2 or a directory"
        )
    own = loaded.runner(configs[0])
    _refuse_layers(configs, own.card)
    plan.refuse_beyond(own.card)
    tokens = loaded.encode(source, chat=False)
    found = _measure_all(loaded, configs, own, plan.cut(tokens), plan)
    entries = compared(found[0], found[1:])
    facts = _facts(own.card, plan, STANDARD_TEXT if text is None else str(text), source, tokens)
    if format == "json":
        print_json(facts | {"results": [entry.to_json() for entry in entries]})
    else:
        _print_table(facts, entries)
    _draw(facts, entries, plot_file, shown=format == "text")
    return 0


def _numbers(lengths: str) -> tuple[int, ...]:
    """The lengths, ascending, each once."""
    try:
        return tuple(sorted({int(length) for length in lengths.split(",")}))
    except ValueError:
        raise BadInput(
            f"--lengths must be numbers of tokens separated by commas, such as {LENGTHS}, "
            f"not {lengths!r}"
        ) from None


def _read(text: Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise BadInput(f"--text {text}: {reason}; give a plain text file in UTF-8") from None


def _refuse_plot(path: Path | None, *, force: bool) -> None:
    if path is None:
        return
    if path.suffix != ".svg":
        raise BadInput(f"--plot {path}: the plot is an SVG file; call it {path.stem}.svg")
    if path.exists() and not force:
        raise OutputExists(path)
    if not can_plot():
        raise BadInput(
            f"--plot {path}: plots need plotext, not installed here; run: {INSTALL_PLOT}"
        )


def _refuse_layers(configs: Sequence[EngineConfig], card: ModelCard) -> None:
    """Before the first setting is measured, and not when its turn comes."""
    for config in configs:
        layer_dtypes(config.kv_dtype, sum(len(group["layers"]) for group in card.groups))


def _measure_all(
    loaded: LoadedModel,
    configs: Sequence[EngineConfig],
    own: TransformersRunner,
    windows: Sequence[Sequence[int]],
    plan: Plan,
) -> list[list[Measured]]:
    """[settings][lengths], in the order of the configurations, of which `own` runs the first."""
    with Progress(console=err(), transient=True) as bar:
        task = bar.add_task("", total=plan.steps * len(configs))
        found: list[list[Measured]] = []
        for config in configs:
            bar.update(task, description=config.kv_dtype)
            runner = loaded.runner(config) if found else own
            found.append(measure(runner, config, windows, plan, on_step=lambda: bar.advance(task)))
    return found


def _facts(
    card: ModelCard, plan: Plan, name: str, text: str, tokens: Sequence[int]
) -> dict[str, Any]:
    """What the numbers are of: enough to get the same ones again."""
    return {
        "model": card.name,
        "model_digest": card.digest,
        "dtype": card.dtype,
        "device": card.device,
        "text": {
            "name": name,
            "digest": hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
            "characters": len(text),
            "tokens": len(tokens),
        },
        "windows": plan.windows,
        "last": plan.last,
        "versions": card.versions,
    }


def _print_table(facts: dict[str, Any], entries: Sequence[Compared]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("context", "cache", "perplexity", f"against {facts['dtype']}"):
        table.add_column(column, justify="left" if column == "cache" else "right")
    previous: str | None = None
    for context, *cells in (entry.row() for entry in entries):
        table.add_row("" if context == previous else context, *cells)
        previous = context
    out().print(table, markup=False)
    text, versions = facts["text"], facts["versions"]
    say(
        f"{facts['model']}, weights {facts['dtype']} on {facts['device']}; the last "
        f"{facts['last']} tokens of {facts['windows']} windows of {text['name']} "
        f"({text['tokens']} tokens); ± is twice the standard error; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )


def _draw(
    facts: dict[str, Any], entries: Sequence[Compared], path: Path | None, *, shown: bool
) -> None:
    """On the terminal and into the file, as far as asked for and possible."""
    if all(entry.difference is None for entry in entries):
        return
    if not can_plot():
        say(f"a plot needs plotext; run: {INSTALL_PLOT}")
        return
    console = out()
    title = f"perplexity that the cache adds, {facts['model']}"
    drawing = Text.from_ansi(plot(entries, title, console.width))
    if shown:
        console.print(drawing)
    if path is not None:
        paper = Console(record=True, file=io.StringIO(), width=console.width)
        paper.print(drawing)
        try:
            path.write_text(paper.export_svg(title="kvrewind perplexity"), encoding="utf-8")
        except OSError as error:
            raise BadOutput(path, error.strerror or str(error)) from None
        say(str(path))
