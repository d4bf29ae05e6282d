"""Tests how tables and mistakes look on terminals and in files."""

import io
import subprocess
import sys

import pytest

from a2rl.cli import console, main
from a2rl.cli.console import PlainConsole, print_table

RUN = "deepsearchqa-mini-swe-agent-20261124-101326-a2b1"
HOSTILE, SHOWN = "x\x1b[2J", r"x\x1b[2J"
PROSE = "Nine words of prose that may stand in lines"


def printed(monkeypatch: pytest.MonkeyPatch, width: int, *, terminal: bool) -> list[str]:
    screen = io.StringIO()
    out = PlainConsole(file=screen, width=width, force_terminal=terminal, color_system=None, highlight=False)
    monkeypatch.setattr(console, "out", out)
    print_table(("run", "seed", "what"), [(RUN, "0", PROSE), (HOSTILE, "12", "y")], right=("seed",))
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_a_table_in_a_file_has_one_line_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, 20, terminal=False) == [
        f"{'run':48}  seed  what",
        f"{RUN}     0  {PROSE}",
        f"{SHOWN:48}    12  y",
    ]


@pytest.mark.parametrize("width", [20, 60, 80])
def test_on_a_narrow_terminal_only_prose_is_broken(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width, terminal=True)
    assert lines[1].startswith(f"{RUN}     0  Nine")
    said = " ".join(line[56:].strip() for line in lines[1:-1])
    assert said == PROSE
    assert lines[-1].split() == [SHOWN, "12", "y"]


@pytest.mark.parametrize("width", [40, 70, 104])
def test_intervals_and_short_texts_stay_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "out", PlainConsole(file=screen, width=width, force_terminal=True, color_system=None))
    columns, row = ("task", "95% interval", "runs", "why"), ("alfworld", "-91.8 to +6.3", "3", PROSE)
    print_table(columns, [row], right=("runs",))
    head, line, *_ = screen.getvalue().splitlines()
    assert all(column in head for column in columns)
    assert all(value in line for value in row[:3])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "x" * 5000], "File name too long"),
        (["run", "--task", "/tmp/" + "x" * 5000], "File name too long"),
        (["run", "--model=~nobody-of-this-name/x"], "there is no user nobody-of-this-name here"),
        (["watch", "--every", "inf"], "it must be a finite number"),
        (["audit", "x", "--max-gb", "nan"], "--max-gb"),
        (["runs", "--verdict", "better"], "'better' is not one of"),
        (["bench"], "name a suite: smoke, "),
    ],
)
def test_a_path_or_number_that_cannot_be_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["a2rl", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code
    assert said in capsys.readouterr().err


def test_a_command_works_where_its_output_was_closed() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m a2rl tasks >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
