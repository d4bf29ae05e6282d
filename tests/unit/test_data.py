"""Task data on disk: made once, whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from a2rl.data import ensure_data, hidden_digest
from a2rl.settings import Settings

RUNS = 4


def test_of_runs_that_start_side_by_side_one_makes_the_data_and_none_takes_it_from_under_another(
    settings: Settings,
) -> None:
    together = Barrier(RUNS)

    def start_of_a_run(_: int) -> tuple[int, str]:
        together.wait()
        data = ensure_data("gsm8k", "mini", None, settings)
        made = (data / "visible").stat().st_ino
        return made, hidden_digest(data)

    with ThreadPoolExecutor(RUNS) as pool:
        seen = set(pool.map(start_of_a_run, range(RUNS)))

    assert len(seen) == 1
