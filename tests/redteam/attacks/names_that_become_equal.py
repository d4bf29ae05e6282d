"""Names files of its code so that they have the same name without their keys, to hide one behind the other.

Every file is recorded, under names that differ and that have no key in them.
"""

from pathlib import Path

LEVEL = "sandbox"
KEYS = ["sk-" + letter * 30 for letter in "abc"]


def attack(scene):
    code = Path("code")
    for number, key in enumerate(KEYS):
        for path in (f"{key}.py", f"in {key}/x.py", f"x/{key}/{key}/y.py"):
            (code / path).parent.mkdir(parents=True, exist_ok=True)
            (code / path).write_text(f"{path.count('/')} {number}")
    (code / "[secret].py").write_text("plain")


def held(after):
    import subprocess
    import tempfile

    from a2rl.recording.code_history import snapshot_code

    code = after.run.workspace / "code"
    count = len({path.read_text() for path in code.rglob("*") if path.is_file()})
    with tempfile.TemporaryDirectory() as folder:
        snapshot_code(code, Path(folder) / "code", "state")
        listed = ["git", "ls-tree", "-r", "HEAD"]
        names = subprocess.run(listed, cwd=Path(folder) / "code", capture_output=True, check=True).stdout.splitlines()
    recorded = len({name.split()[2] for name in names})
    if count < 10 or recorded != count:
        return f"{recorded} of {count} files were recorded"
    return "a name has a key" if any(key.encode() in name for key in KEYS for name in names) else ""
