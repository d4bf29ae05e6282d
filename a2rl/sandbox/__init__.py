"""The sandbox of an agent: it limits what the agent can access and which system calls it can make.

    isolation = reselect_sandbox(run.spec.sandbox, recorded, settings)              # selection.py: raises if too weak
    confinement = confinement_of(run, agent, settings, isolation, connect=(port,))   # execution/command.py
    AgentCommand(..., confinement=confinement)                                      # the supervisor does the rest

These layers need neither root nor an installation. They also hold if the agent runs as root:
- Landlock (a2rl/linux/landlock.py): the agent can access only the files that it needs, cannot signal or trace other
  processes, and cannot make TCP connections itself;
- no capabilities, and no way to gain any: set-user-id programs do not work (launch.py);
- seccomp (syscall_rules.py): only TCP and local sockets are allowed. Namespaces,
  mounts, io_uring, leases, and other calls that help to escape or to delay other processes are not;
- the broker (broker/server.py): a thread of the supervisor that checks some calls and performs them itself. These are
  calls for connections and servers (network.py), for modes, owners, times and attributes of files and watches on them
  (metadata.py), and for priorities and cores (server.py). In some sandboxes the kernel protects modes, owners and
  times, because the agent has its own user or everything else is mounted read-only (namespaces.py, launch.py). Calls
  that change these then do not go through the broker.

If the machine supports more (selection.py finds out), the agent also gets its own /dev/shm and terminals, its own
process table (namespaces.py), and, if the pipeline runs as root, its own user (users.py). The folders above that user's
files are made accessible, and the other contents of those folders are hidden. If an agent with its own user shares
/dev/shm with other programs, the files that it leaves there are removed (storage.py). With bwrap (launch.py), the agent
also has its own file system.

No library: bubblewrap (bwrap) and Landlock enforce the confinement. Our own code needs no installation and works in
containers, where bwrap mostly does not. docs/sandbox.md describes the limits of this protection.
"""
