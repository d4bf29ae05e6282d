"""Running code that nobody trusts: answers to programming problems, many at once.

    test = "def check(candidate):\\n    assert candidate(1) == 2\\n"
    with CodePool() as pool:
        [outcome] = pool.judge([CodeCase("def inc(n):\\n    return n + 1\\n", "inc", "", test)])

How an answer cannot win but by being right. It runs in a *cell*, a process that has nothing to do with the verdict.
The test runs in a *judge*, a process in which no line of an answer is ever executed: `check(candidate)` gets a stand-in
that sends the arguments of each call to the cell as JSON, and makes a value of what comes back (plain.py: exact
built-in types, limited in size). So the comparison is between values that the judge made, by code that the answer
cannot reach. To exit early, patch builtins, override `__eq__`, forge messages on the socket or read the stack gets an
answer no further: whatever it sends is just what it returns. It meets the arguments of a call and never what is
expected of it, nor other answers: a cell is forked for each answer, from a process that has seen none.

What keeps an answer from doing harm (cell.py):
- seccomp (seccomp.py): a list of the system calls that computing takes. All others do not exist for an answer: it has
  no way to start a process or thread, open a socket of any kind, send a signal, or change a file. Hence an answer is
  one process, and nothing of it is left when the judge has killed that one;
- Landlock (landlock.py): of all files it can open those of the standard library, to read. A kernel without Landlock
  (before Linux 5.13) leaves it no files at all, but what was imported beforehand;
- limits on processor time, time, memory and on the size of what it returns; its output goes nowhere.

Without seccomp there is no sandbox, and `CodePool` says so instead of running anything. None of it needs root, a
namespace or an installation; as root it holds as well.
"""
