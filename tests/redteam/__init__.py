"""Attacks on the pipeline, run as agents: each is a real attempt, and none may succeed.

`a2rl redteam` (or `python -m tests.redteam`) runs them. One attack is one file in `attacks/`:

    \"""What the attacker wants, in one line.

    What must hold, in a sentence or two.
    \"""

    LEVEL = "run"                        # "sandbox": one confined process, with targets outside the sandbox
                                         # "run": a whole run with its grading service, from setup to report
    SPEC = {"max_submissions": 3}        # optional, for level "run": settings of the run

    def prepare(stack, folder):          # optional, runs outside before a run: returns {"agent": keys of agent.yaml,
        ...                              # "environ": the user's variables, "spec": settings}, each if needed

    def attack(scene):                   # runs as the agent, in the sandbox, with the standard library alone:
        ...                              # it returns what it achieved, or raises what stopped it

    def held(after):                     # optional, runs outside afterwards, and decides instead of `attack`:
        return ""                        # returns what the attack achieved, or ""

`scene` has the paths, ports and process ids of the targets (see `arena.py`), and the steps that attacks have in common
(see `inside.py`), such as `scene.try_each(ways)`, `scene.submit(folder)`, and `scene.skip(reason)` for a machine that
lacks what the attack needs. `after` is an `arena.After`; `look.py` has what `prepare` and `held` have in common. At
level "run" an attack also succeeds unless the run ends by itself, in time, with all its records and without a process
left, and `a2rl verify` finds no problem.
"""
