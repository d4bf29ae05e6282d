"""Sends the folder of a run in whose history of the code git is told to run a program.

Git is never run with settings that a2rl did not make.
"""

import shutil

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the folder is made outside")


def held(after):
    from tests.redteam.look import reader

    mark = reader().victim.with_name("was-here")

    def settings(folder):
        git = folder / "code" / ".git"
        with (git / "config").open("a") as file:
            file.write(
                f"[core]\n\tfsmonitor = touch {mark}\n\tsshCommand = touch {mark}\n[extensions]\n\tpartialClone = o\n"
            )
            file.write(f'[remote "o"]\n\turl = ext::sh -c "touch {mark}"\n\tpromisor = true\n')
            file.write('[protocol "ext"]\n\tallow = always\n')
        for found in (git / "objects").glob("??"):
            shutil.rmtree(found)

    return reader().look_at(settings)
