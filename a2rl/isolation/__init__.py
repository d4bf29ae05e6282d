"""What confines an agent: what it reaches, and what becomes of everything else that it tries.

    strength = decide_again(run.spec.sandbox, recorded, settings)                   # decide.py: or an error
    confinement = confinement_of(run, agent, settings, strength, connect=(port,))   # reach.py
    AgentCommand(..., confinement=confinement)                                      # the supervisor does the rest

The layers, each of which needs neither root nor an installation, and holds as root as well:
- Landlock (a2rl/sandbox/landlock.py): of all files it reaches those that it needs; it signals and traces nobody
  outside; no TCP connection is its own to make;
- no capabilities, and no way to get any: set-user-id programs do not work (launch.py);
- seccomp (calls.py; the table: rules.py): TCP and local sockets only, no namespaces, mounts, io_uring, leases, and
  what else serves to break out or to hold up others;
- the broker (broker.py): a thread of the supervisor that is asked, looks, and does it itself: connections and servers
  (network.py), modes, owners, times and attributes of files, watches on them (metadata.py), priorities and cores
  (scheduling.py). Where the kernel keeps metadata, because the agent has a user of its own or all else is mounted
  read-only (namespaces.py, bwrap.py), it is not asked about that.

What a machine has besides (machine.py finds out), an agent gets as well (namespaces.py, users.py): /dev/shm and
terminals of its own, a table of processes of its own, and, where the pipeline is root's, a user of its own, whose way
to its files is opened up and whose surroundings are hidden. Without a /dev/shm of its own, what it leaves in
everybody's is removed (shared_memory.py). With bwrap (bwrap.py), all of that inside a file system and a table of
processes of its own.

What they do not hold back is in README.md, "What an agent can do".
"""
