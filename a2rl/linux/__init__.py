"""Linux kernel features as plain functions: Landlock, seccomp, control groups, process trees, openat2; and GPUs."""
