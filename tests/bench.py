"""`make bench`: measures the project's claims about speed, as ratios within one run."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from a2rl.agents.definition import Agent
from a2rl.code_execution.pool import CodeCase, CodePool
from a2rl.core.files import read_jsonl
from a2rl.core.processes import OPENMP_SPIN_COUNT
from a2rl.core.settings import Settings
from a2rl.grading.devices import devices_here
from a2rl.grading.job import GradeJob
from a2rl.grading.pool import GraderPool, grade_now
from a2rl.models.base_model import resolve_model
from a2rl.models.checkpoint import weights_digest
from a2rl.recording.recorder import Recorder
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted
from a2rl.run.ledger import Ledger
from a2rl.sampling import SamplingParams
from a2rl.sampling.engine_params import Dtype, VllmParams
from a2rl.sampling.transformers_backend import TransformersSampler
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.confinement import Confinement
from a2rl.sandbox.policy import workspace_confinement
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.selection import select_sandbox
from a2rl.sandbox.users import assign_user
from a2rl.tasks.catalog import load_grader, load_task
from a2rl.tasks.contract import Variant
from a2rl.tasks.data import ensure_data
from tasks.alfworld.verify import verify
from tasks.gsm8k.grade import prompt
from tasks.humaneval.grade import program, published_items
from tests.suite_scale import measure as measure_suite
from tests.webshop.scale import measure

ITEMS = 200
PROMPTS = 64
SHOTS = 24
"""Worked examples before each prompt, about as many tokens as real ones have."""
EPISODES = 60
GAMES = 12
"""Of alfworld, since the original takes seconds for each."""
SHOPS = (1_000, 100_000)
"""Products; the whole catalogue has 1,180,000: `python -m tests.webshop.scale 1000 1180000`."""
ROUNDS = 4
TRAINING = """
import time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2)])
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(8, 32, 64)
def step():
    started = time.perf_counter()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - started
print(min(step() for _ in range(500)))
"""
"""Prints the time of its fastest step: the others were held up by somebody else."""
RECORDED_S = 60
SUITE_RUNS, SUITE_SUBMISSIONS = 2_000, 40
ANSWERS = 8
"""To each problem of humaneval."""


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def job(settings: Settings, folder: Path, name: str, exact: bool = False) -> GradeJob:
    data = ensure_data("gsm8k", "mini", None, settings)
    return GradeJob(
        root=settings.root, task="gsm8k", variant="mini", hidden=data / "hidden", model=resolve_model("tiny", settings),
        split="all", split_seed=0, limit=ITEMS, exact=exact, options={},
        result=folder / f"{name}.json", log=folder / "log",
    )  # fmt: skip


def grading(settings: Settings, folder: Path) -> list[tuple[str, str]]:
    """Compares batches with single prompts, and a warm worker with a cold one."""
    cold_s = seconds(lambda: _grade_in_new_pool(settings, job(settings, folder, "cold")))
    with GraderPool(settings, devices_here(settings)[:1]) as pool:
        batched = pool.submit(job(settings, folder, "first")).result().score
        warm_s = seconds(lambda: pool.submit(job(settings, folder, "warm")).result())
        exact = pool.submit(job(settings, folder, "exact", exact=True)).result().score
    return [
        (f"answering {ITEMS} items: one prompt at a time / batched", f"{exact.seconds / batched.seconds:.1f}x"),
        (
            f"grading {ITEMS} items: new worker / warm worker",
            f"{cold_s / warm_s:.1f}x ({cold_s:.1f} s, {warm_s:.1f} s)",
        ),
    ]


def kept_engine(settings: Settings, folder: Path) -> list[tuple[str, str]]:
    """Compares an engine of vLLM that takes other weights with one that is started anew; nothing without vLLM."""
    if not settings.vllm_python.is_file():
        return []
    starts = []
    with GraderPool(settings, devices_here(settings)[:1]) as pool:
        for name in ("cold-engine", "warm-engine"):
            work = job(settings, folder, name).model_copy(update={"backend": "vllm", "vllm": VllmParams()})
            result = pool.submit(work).result()
            assert result.engine_start is not None
            starts.append(result.engine_start)
    cold, warm = starts
    assert (cold.kind, warm.kind) == ("cold", "warm"), warm.why
    ratio = cold.seconds / warm.seconds
    return [("vLLM: new engine / other weights", f"{ratio:.0f}x ({cold.seconds:.1f} s, {warm.seconds:.2f} s)")]


def shared_prefix(settings: Settings) -> list[tuple[str, str]]:
    """Compares reading what prompts begin with once, in two types of numbers, with reading it for each prompt."""
    questions = read_jsonl(ensure_data("gsm8k", "mini", None, settings) / "hidden" / "eval.jsonl")
    shots = questions[-SHOTS:]
    prompts = [prompt(row["question"], shots, chat=False) for row in questions[:PROMPTS]]
    params = SamplingParams(max_new_tokens=32)
    times: dict[tuple[Dtype, bool], float] = {}
    texts: dict[tuple[Dtype, bool], list[str]] = {}
    types: tuple[Dtype, ...] = ("float32", "bfloat16")
    for way in product(types, (False, True)):
        dtype, sharing = way
        sampler = TransformersSampler(resolve_model("tiny", settings), False, lambda: None, dtype, sharing)
        started = time.perf_counter()
        texts[way] = [each.text for each in sampler.generate(prompts, params)]
        times[way] = time.perf_counter() - started
    rows = []
    for dtype in types:
        pairs = zip(texts[dtype, False], texts[dtype, True], strict=True)
        different = sum(alone != together for alone, together in pairs)
        ratio = times[dtype, False] / times[dtype, True]
        rows.append(
            (
                f"answering {PROMPTS} prompts with {SHOTS} shots in {dtype}: read for each / read once",
                f"{ratio:.1f}x, {different} texts differ",
            )
        )
    return rows


def _grade_in_new_pool(settings: Settings, work: GradeJob) -> None:
    with GraderPool(settings, devices_here(settings)[:1]) as pool:
        pool.submit(work).result()


def alfworld(settings: Settings, folder: Path) -> list[tuple[str, str]]:
    """Compares our engine with the original, alone and with a model that plays all games at once or one at a time."""
    if find_spec("textworld") is None:
        return [("alfworld: TextWorld is not installed, so there is nothing to compare with", "-")]
    hidden = ensure_data("alfworld", "mini", None, settings) / "hidden"
    files = [hidden / "games" / name / "game.tw-pddl" for name in load_grader("alfworld").item_ids(hidden)[::40]]
    report, differences = verify(files, steps=20, seed=0, fast=False)
    assert not differences
    scores = {}
    for engine in ("native", "textworld"):
        work = GradeJob(
            root=settings.root, task="alfworld", variant="mini", hidden=hidden, model=resolve_model("tiny", settings),
            split="all", split_seed=0, limit=GAMES, options={"engine": engine, "prompts": "repaired"},
            result=folder / f"{engine}.json", log=folder / "log",
        )  # fmt: skip
        scores[engine] = grade_now(work, settings)
    native, stock = (scores[engine] for engine in ("native", "textworld"))
    assert native.items == stock.items
    return [
        ("alfworld: a step with its admissible commands, original / ours", f"{report.speed_ratio:.0f}x"),
        ("alfworld: loading and starting a game, original / ours", f"{report.load_ratio:.0f}x"),
        (
            f"alfworld: grading {GAMES} games, one at a time in the original / all at once in ours",
            f"{stock.score.seconds / native.score.seconds:.1f}x"
            f" ({stock.score.seconds:.0f} s, {native.score.seconds:.0f} s)",
        ),
    ]


def webshop() -> list[tuple[str, str]]:
    """Measures the cost of a shop by its size."""
    small, large = (measure(count) for count in SHOPS)
    growth, one, other = large.products / small.products, small.stocked.stock_s, large.stocked.stock_s
    return [
        (
            f"webshop: stocking a shop, seconds a product, {large.products:,} / {small.products:,} products",
            f"{other / one / growth:.1f}x ({other:.0f} s, {large.stocked.stock_mib:.0f} MiB)",
        ),
        (
            f"webshop: opening the shop of {large.products:,}, and steps per second, each search a new one",
            f"{large.used.open_s:.1f} s, {large.used.steps_per_s:,.0f} ({small.used.steps_per_s:,.0f} in the small)",
        ),
    ]


def episodes(task: str, settings: Settings, folder: Path) -> list[tuple[str, str]]:
    """Compares all episodes at once with one at a time, with and without `exact`."""
    hidden = ensure_data(task, "mini", None, settings) / "hidden"
    scores = {}
    for exact in (False, True):
        work = GradeJob(
            root=settings.root, task=task, variant="mini", hidden=hidden, model=resolve_model("tiny", settings),
            split="all", split_seed=0, limit=EPISODES, exact=exact, options=load_task(task, settings.root).choose({}),
            result=folder / f"{task}-{exact}.json", log=folder / "log",
        )  # fmt: skip
        scores[exact] = grade_now(work, settings)
    batched, single = scores[False], scores[True]
    different = sum(one != other for one, other in zip(batched.items, single.items, strict=True))
    return [
        (
            f"{task}: {EPISODES} episodes, one at a time (exact) / all at once",
            f"{single.score.seconds / batched.score.seconds:.1f}x, {different} items differ",
        )
    ]


def code_answers(settings: Settings) -> list[tuple[str, str]]:
    """Compares testing answers in the sandbox with HumanEval's own way: a new interpreter for each answer."""
    mirror = settings.root.parent / "shared" / "data" / "humaneval"
    variant: Variant = "full" if mirror.is_dir() else "mini"
    hidden = ensure_data("humaneval", variant, mirror if mirror.is_dir() else None, settings) / "hidden"
    items = published_items(hidden)
    cases = ANSWERS * [
        CodeCase(program(item, item.canonical_solution), item.entry_point, item.prompt, item.test) for item in items
    ]
    plain = [f"{case.program}\n{case.test}\ncheck({case.entry_point})\n" for case in cases]
    one_by_one_s = seconds(
        lambda: [subprocess.run([sys.executable, "-c", text], check=True, capture_output=True) for text in plain]
    )
    started = time.perf_counter()
    with CodePool() as pool:
        outcomes = pool.test(cases)
    pool_s = time.perf_counter() - started
    assert all(outcome.passed for outcome in outcomes)
    return [
        (
            f"humaneval ({variant}): {len(items)} problems x {ANSWERS} answers, one subprocess at a time / in the pool",
            f"{one_by_one_s / pool_s:.1f}x ({one_by_one_s:.0f} s, {pool_s:.1f} s)",
        )
    ]


def ledger(folder: Path) -> list[tuple[str, str]]:
    """Compares a durable, chained append with a plain durable write of the same size."""
    book, count = Ledger(folder / "ledger.db"), 100
    chained_s = seconds(lambda: [book.append(AgentStarted(attempt=1, elapsed_s=0.0)) for _ in range(count)])
    verify_s = seconds(book.verify)
    return [
        ("ledger: appends per second, each on disk before it returns", f"{count / chained_s:.0f}"),
        ("ledger: appending / verifying the chain", f"{chained_s / verify_s:.0f}x"),
    ]


def digest(settings: Settings, folder: Path) -> list[tuple[str, str]]:
    """Compares computing the weights digest with reading the file."""
    model = folder / "model"
    shutil.copytree(resolve_model("tiny", settings), model)
    read_s = min(seconds((model / "model.safetensors").read_bytes) for _ in range(5))
    digest_s = min(seconds(lambda: weights_digest(model)) for _ in range(5))
    return [("weights digest / reading the file", f"{digest_s / read_s:.1f}x")]


def command_line() -> list[tuple[str, str]]:
    """Compares `a2rl --help` with starting Python."""

    def run(*arguments: str) -> Callable[[], object]:
        command = [sys.executable, *arguments]
        return lambda: subprocess.run(command, capture_output=True, check=True)

    bare_s = min(seconds(run("-c", "pass")) for _ in range(5))
    help_s = min(seconds(run("-m", "a2rl", "--help")) for _ in range(5))
    return [("a2rl --help / starting Python", f"{help_s / bare_s:.1f}x ({help_s:.2f} s)")]


def isolation(settings: Settings, folder: Path) -> list[tuple[str, str]]:
    """Compares training and starting processes inside the sandbox with the same outside, in turn."""
    workspace, log = folder / "workspace", folder / "agent.log"
    workspace.mkdir()
    found = select_sandbox("landlock", settings)
    user = assign_user(workspace) if "user" in found.layers else 0
    confined = workspace_confinement(workspace, found, settings, (), (), folder / "network.jsonl", user)

    def run(confinement: Confinement | None, *command: str) -> str:
        log.unlink(missing_ok=True)
        environment = settings.forwarded(("PATH",)) | {"GOMP_SPINCOUNT": OPENMP_SPIN_COUNT}
        work = AgentCommand(list(command), str(workspace), environment, str(log), confinement)
        with AgentProcess(work, settings) as process:
            assert process.wait(600) is not None
        return log.read_text()

    train = (sys.executable, "-c", TRAINING)
    trained = [(float(run(confined, *train)), float(run(None, *train))) for _ in range(ROUNDS)]
    started = [(seconds(lambda: run(confined, "true")), seconds(lambda: run(None, "true"))) for _ in range(ROUNDS)]
    inside_s, outside_s = (min(each) for each in zip(*trained, strict=True))
    start_s, plain_s = (min(each) for each in zip(*started, strict=True))
    milliseconds = f"({1000 * inside_s:.1f} ms, {1000 * outside_s:.1f} ms)"
    return [
        (f"sandbox ({found}): a step of training, inside / outside", f"{inside_s / outside_s:.2f}x {milliseconds}"),
        ("sandbox: starting an agent, inside - outside", f"{1000 * (start_s - plain_s):.0f} ms"),
    ]


def recorder(folder: Path) -> list[tuple[str, str]]:
    """Measures the cost of recording an agent that writes code and checkpoints all the time."""
    run = RunDir(folder / "recorded")
    for place in ("code/pkg", "output", ".home"):
        (run.workspace / place).mkdir(parents=True)
    run.logs.mkdir()
    run.clock.create(600.0, refunds=False)
    for number in range(200):
        (run.workspace / f"code/pkg/m{number}.py").write_text("x = 1\n" * 200)
        (run.workspace / f"output/f{number}.bin").write_bytes(bytes(1000))
    recording = Recorder(run, Agent(id="a", title="a", start=("true",)), os.getpid(), 1)
    started, before, number = time.monotonic(), _cpu_s(), 0
    while time.monotonic() - started < RECORDED_S:
        number += 1
        (run.workspace / "code/train.py").write_text(f"step = {number}\n")
        recording.look()
        time.sleep(0.5)
    used, passed = _cpu_s() - before, time.monotonic() - started
    count = ["git", "rev-list", "--count", "HEAD"]
    commits = subprocess.run(count, cwd=run.code, capture_output=True, text=True, check=True)
    return [("recorder: of one core, 200 files of code, changed all the time",
             f"{100 * used / passed:.1f}% ({commits.stdout.strip()} commits in {passed:.0f} s)")]  # fmt: skip


def _cpu_s() -> float:
    """Returns the CPU seconds of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def suite_report() -> list[tuple[str, str]]:
    """Measures the report over many runs, and what one more run adds."""
    found = measure_suite(SUITE_RUNS, SUITE_SUBMISSIONS)
    return [
        (
            f"report over {SUITE_RUNS:,} runs of {SUITE_SUBMISSIONS} submissions; again after one more run",
            f"{found.first.wall_s:.0f} s, {found.one_more.wall_s:.1f} s ({found.first.cpu_s:.0f} s, "
            f"{found.one_more.cpu_s:.1f} s of CPU time), {found.peak_mib:.0f} MiB",
        )
    ]


def main() -> None:
    settings, table = Settings.load(), Table(box=None)
    sys.path.insert(0, str(settings.root))
    table.add_column("measured")
    table.add_column("figure", justify="right")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for row in [
            *grading(settings, folder), *kept_engine(settings, folder), *shared_prefix(settings),
            *alfworld(settings, folder), *webshop(),
            *episodes("webshop", settings, folder), *episodes("deepsearchqa", settings, folder),
            *isolation(settings, folder), *recorder(folder), *code_answers(settings), *ledger(folder),
            *digest(settings, folder), *command_line(), *suite_report(),
        ]:  # fmt: skip
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
