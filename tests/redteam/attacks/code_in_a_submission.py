"""Submits checkpoints that contain code: remote code, pickles, its own templates and tokenizers.

No code of a submission is ever run. The grader takes only the weights; all other files are those of the base model.
"""

import json
from pathlib import Path

LEVEL = "run"
MARK = "executed"


def attack(scene):
    code = f"import pathlib; pathlib.Path({str(Path(scene.workspace, MARK))!r}).write_text('x')\n"
    pickled = b"cos\nsystem\n(S'touch " + str(Path(scene.workspace, MARK)).encode() + b"'\ntR."
    answers = []
    for name, files in {
        "remote": {"config.json": {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}, "modeling_own.py": code},
        "pickle": {"pytorch_model.bin": pickled, "model.safetensors": None},
        "both": {"pytorch_model.bin": pickled, "training_args.bin": pickled, "optimizer.pt": pickled},
        "template": {"chat_template.jinja": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
                     "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["own.Own", None]}}, "own.py": code},
        "generation": {"generation_config.json": {"max_new_tokens": 10**9, "num_beams": 99}, "sitecustomize.py": code},
    }.items():  # fmt: skip
        folder = scene.copy_model(f"output/{name}")
        for file, content in files.items():
            write(folder / file, content)
        status, answer = scene.submit(folder)
        answers.append(f"{name}: {status} {answer}")
    raise PermissionError("; ".join(answers))


def write(path, content):
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        known = json.loads(path.read_text()) if path.exists() else {}
        path.unlink(missing_ok=True)
        path.write_text(json.dumps(known | content))
    else:
        path.write_text(content)


def held(after):
    if (after.run.workspace / MARK).exists():
        return "its code was run"
    foreign = [
        path.name for path in after.run.checkpoints.glob("*/*") if path.suffix in {".py", ".bin", ".pt", ".jinja"}
    ]
    return f"the grader keeps files of its own: {foreign}" if foreign else ""
