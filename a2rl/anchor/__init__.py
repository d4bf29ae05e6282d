"""The anchor of a run outside of its directory: signed and published heads of its ledger. See docs/audit.md."""
