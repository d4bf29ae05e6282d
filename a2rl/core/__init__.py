"""The foundation of all other packages, without knowledge of benchmarks: files, locks, secrets, child processes."""
