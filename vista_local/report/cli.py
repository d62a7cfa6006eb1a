"""`vista-local report` and `compare`: result files in, one HTML file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vista_local.errors import VistaError
from vista_local.files import whole_file
from vista_local.terminal import console, user_errors
from vista_local.text import counted


def report(
    results: Annotated[Path, typer.Argument(help="result file of `vista-local score` or `merge`")],
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file")],
    gold: Annotated[
        Path | None, typer.Option(help="gold labels: conversations with labelled claims, corrections or a merged file")
    ] = None,
    title: Annotated[str | None, typer.Option(help="title of the page; default: the result file's name")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="list only so many conversations, the lowest scores; figures are of all")
    ] = None,
) -> None:
    """Write results as one self-contained page to read, filter and correct them."""
    from vista_local.corrections import gold_claims
    from vista_local.merge import read_with_run
    from vista_local.report.data import report_data
    from vista_local.report.page import render_page

    with user_errors():
        data = report_data(
            read_with_run(results),
            title=title or f"Factuality of {results.stem}",
            source=results.name,
            gold=gold_claims(gold) if gold else None,
            limit=limit,
        )
        with whole_file(output) as stream:
            stream.write(render_page(data))
        size = output.stat().st_size / 1e6
        listed = counted(len(data["conversations"]), "conversation")
        console.print(f"{output}: {listed}, {size:.1f} MB", markup=False, highlight=False, soft_wrap=True)


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="result file")],
    second: Annotated[Path, typer.Argument(metavar="B", help="result file of the same conversations")],
    gold: Annotated[
        Path | None, typer.Option(help="gold labels: conversations with labelled claims, corrections or a merged file")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML file")] = None,
) -> None:
    """Compare two result files: figures, labels that changed, and which of them is right."""
    from vista_local.compare import compare_data, compare_results, comparison_tables
    from vista_local.corrections import gold_claims
    from vista_local.merge import read_with_run
    from vista_local.report.page import render_page

    with user_errors():
        labels = gold_claims(gold) if gold else None
        comparison = compare_results(
            (r for r, _ in read_with_run(first)), (r for r, _ in read_with_run(second)), labels
        )
        if gold and not any(p.gold for p in comparison.every_pair):
            raise VistaError(
                f"{gold}: no claim that both files have has the conversation, turn and text of a gold claim"
            )
        data = compare_data(comparison, title=f"{first.name} and {second.name}", names=(first.name, second.name))
        for part in comparison_tables(data):
            Console().print(part)
        if output:
            with whole_file(output) as stream:
                stream.write(render_page(data, "compare"))
            console.print(f"written: {output}", markup=False, highlight=False, soft_wrap=True)
