"""What the scripts have in common that try the rollouts of a task, each in a process of its own, as agents do.

`all_is_well` puts this module before a script, so it imports nothing of this project.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WELL = "all is well"


def all_is_well(script: str, *arguments: object, cwd: Path) -> None:
    """Runs a script, which must come to `end`."""
    file = cwd / "script.py"
    file.write_text(Path(__file__).read_text() + script)
    command = [sys.executable, str(file), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert ended.stdout.strip() == WELL, ended.stderr


def data_and_model() -> tuple[Path, Any, Any]:
    """Returns the data, from which modules can now be imported, and the model with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    data, model = Path(sys.argv[1]), sys.argv[2]
    sys.path.insert(0, str(data))
    torch.set_num_threads(1)
    return data, AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)


def checked(play: Callable[[], list[Any]], model: Any, most: int) -> list[Any]:
    """Plays episodes twice, which must be the same ones, and checks their tokens, masks and probabilities.

    Args:
        most: How many tokens the model may write in an episode.
    """
    import torch

    episodes = play()
    assert episodes == play()
    assert len({tuple(episode.tokens) for episode in episodes}) == len(episodes), "each episode draws for itself"
    for episode in episodes:
        tokens, logprobs = torch.tensor(episode.tokens), torch.tensor(episode.logprobs)
        written = torch.tensor(episode.written, dtype=torch.bool)
        assert len(tokens) == len(logprobs) == len(written)
        assert 0 < written.sum() <= most
        logits = model(torch.tensor([episode.prompt + episode.tokens])).logits[0, len(episode.prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
        assert torch.allclose(own[written], logprobs[written], atol=1e-4)
        assert not logprobs[~written].any()
    return episodes


def trainer(model: Any, tokenizer: Any) -> SimpleNamespace:
    """Returns what `for_trl` needs of a trainer."""
    accelerator = SimpleNamespace(unwrap_model=lambda model: model, process_index=0)
    state = SimpleNamespace(global_step=7)
    return SimpleNamespace(model=model, processing_class=tokenizer, accelerator=accelerator, state=state)


def check_columns(output: Mapping[str, list[Any]], rows: int) -> None:
    """Checks which columns TRL gets, and how long they are."""
    assert {"prompt_ids", "completion_ids", "logprobs", "env_mask", "reward"} <= output.keys()
    assert {len(column) for column in output.values()} == {rows}


def end() -> None:
    """Says that all is well."""
    assert not {name.partition(".")[0] for name in sys.modules} & {"a2rl", "tasks"}, "it needs nothing of this project"
    sys.stdout.write(WELL)
