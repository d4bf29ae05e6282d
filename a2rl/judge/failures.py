"""The items of a grade about which its judge gave no answer: one count for all rounds and parts of the grade."""

from pathlib import Path


class Failures:
    """Counts items, with the reasons; safe for threads, and for the processes that share a file."""

    def __init__(self, file: Path | None = None) -> None:
        """Begins to count; with a file, what others have written to it counts as well."""
        self._file, self._reasons = file, dict[str, str]()

    def add(self, item: str, reason: str) -> None:
        """Counts an item, once however often a question about it fails."""
        self._reasons[item] = reason
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{item}\t{' '.join(reason.split())}\n")

    def known(self) -> dict[str, str]:
        """Returns the reasons by item, those of this process first."""
        lines = self._file.read_text("utf-8").splitlines() if self._file is not None and self._file.exists() else []
        return self._reasons | dict(line.split("\t", 1) for line in lines if "\t" in line)
