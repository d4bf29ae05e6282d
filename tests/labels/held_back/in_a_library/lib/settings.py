from dataclasses import dataclass


@dataclass
class Settings:
    steps: int
    rate: float
