"""What gains cost and what size adds: gain per dollar, per GPU-hour, and over the size of the base model."""

from collections.abc import Callable, Iterator

from a2rl.results.suite.drawing import THEME, Bar, Figure, Row, Style, draw_bars, finish, panels
from a2rl.results.suite.leaderboard import Board, Cell
from a2rl.results.suite.run_summary import RunSummary
from a2rl.run.records import sum_known

Cost = Callable[[RunSummary], float | None]


def draw_costs(board: Board, style: Style) -> Iterator[Figure]:
    """Draws what is known of the costs and of the sizes of the base models."""
    dollar = "Dollars are what the driver's tokens cost at list prices; time and electricity are not in them."
    hour = "GPU-hours are the agent's time, multiplied by the number of GPUs of the run."
    costs: tuple[tuple[str, str, Cost, str], ...] = (
        ("dollar", "dollar", lambda run: run.cost_usd, dollar),
        ("gpu-hour", "GPU-hour", lambda run: run.gpu_hours, hour),
    )
    for name, unit, cost, note in costs:
        if bars := [bar for task in board.tasks for cell in board.cells if (bar := _bar(cell, task, cost)) is not None]:
            yield _per_cost(bars, style, name, unit, note)
    if any(len(points) > 1 for points in _by_size(board).values()):
        yield _scaling(board, style)


def _bar(cell: Cell, task: str, cost: Cost) -> Bar | None:
    """Returns the mean gain divided by the mean cost; None for another task, or without the cost of every run."""
    total = sum_known(cost(run) for run in cell.runs)
    if cell.task != task or not total:
        return None
    each = total / len(cell.runs)
    label = f"{cell.stack} ({each:.3g})"
    return Bar(task, cell.stack, label, cell.gain / each, cell.ci.low / each, cell.ci.high / each)


def _per_cost(bars: list[Bar], style: Style, name: str, unit: str, note: str) -> Figure:
    rows: list[Row] = [
        {"task": bar.task, "stack": bar.stack, f"points_per_{name.replace('-', '_')}": bar.value, "low": bar.low,
         "high": bar.high}
        for bar in bars
    ]  # fmt: skip
    caption = (
        f"Mean gain divided by the mean number of {unit}s of a run, which is in brackets; the 95% interval is that of "
        f"the gain. Stacks with a run of unknown cost are left out. {note}"
    )
    drawing = draw_bars(bars, style, f"points per {unit}")
    return finish(drawing, f"gain-per-{name}", f"Gain per {unit}", caption, rows)


def _by_size(board: Board) -> dict[tuple[str, str], list[tuple[int, Cell]]]:
    """Returns the cells by task and stack without its model, each with the parameters of its model, smallest first."""
    found: dict[tuple[str, str], list[tuple[int, Cell]]] = {}
    for cell in board.cells:
        size, model = cell.runs[0].parameters, str(cell.runs[0].settings["model"])
        if size is not None:
            family = " · ".join(part for part in cell.stack.split(" · ") if part != model)
            found.setdefault((cell.task, family), []).append((size, cell))
    return {key: sorted(points, key=lambda point: point[0]) for key, points in found.items()}


def _scaling(board: Board, style: Style) -> Figure:
    """Draws the mean gain over the size of the base model, with a line for each stack whose models differ."""
    families: Style = {}
    for (_, family), points in _by_size(board).items():
        families.setdefault(family, style[points[0][1].stack])
    x_label, y_label = "parameters of the base model, billions", "gain over the base model, points"
    drawing, axes = panels(board, families, x_label, y_label)
    rows: list[Row] = []
    for (task, family), points in _by_size(board).items():
        look = families[family]
        sizes, gains = [size / 1e9 for size, _ in points], [cell.gain for _, cell in points]
        axes[task].plot(sizes, gains, linewidth=2, marker="o", markersize=4, **look)
        for size, (_, cell) in zip(sizes, points, strict=True):
            axes[task].plot([size, size], [cell.ci.low, cell.ci.high], linewidth=1, color=look["color"])
        rows += [
            {"task": task, "stack": family, "model": cell.runs[0].settings["model"], "parameters": size,
             "gain": cell.gain, "low": cell.ci.low, "high": cell.ci.high}
            for size, cell in points
        ]  # fmt: skip
    for task, axis in axes.items():
        axis.axhline(0, color=THEME["soft"], linewidth=1)
        axis.set(title=task, xscale="log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    caption = (
        "Mean gain over the size of the base model, with 95% intervals. Models whose size is neither in their files "
        "nor in their name are left out."
    )
    return finish(drawing, "scaling", "Gain over model size", caption, rows)
