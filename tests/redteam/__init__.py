"""Attacks on the pipeline, run as agents: each tries for real, and none may get what it wants.

`a2rl redteam` (or `python -m tests.redteam`) runs them. One attack is one file in `attacks/`:

    \"""What the attacker wants, in one line.

    What must hold, in a sentence or two.
    \"""

    LEVEL = "run"                        # "sandbox": one confined process beside things it has no business with
                                         # "run": a whole run, with its real grading service, from setup to report
    SPEC = {"max_submissions": 3}        # settings of the run, for level "run"; all have defaults

    def prepare(stack, folder):          # optional, outside, before a run: returns {"agent": keys of its agent.yaml,
        ...                              # "environ": of the user's, "spec": settings}, each where it is needed

    def attack(scene):                   # as the agent, in the sandbox, with the standard library alone
        ...                              # returning: it got what it wanted; raising: it was stopped, and by what

    def held(after):                     # outside, afterwards; where there is one, it alone decides
        return ""                        # or what the attack achieved

`scene` has the paths, ports and process ids that the attack is after (see `arena.py`); `scene.skip(why)` says that this
machine does not have what the attack takes; `scene.submit(folder)`
hands in a checkpoint. `after` is an `arena.After`. At level "run" it must hold for every attack
that the run ends by itself, in time, with all its records, that `a2rl verify` finds it sound, and that no process is
left.
"""
