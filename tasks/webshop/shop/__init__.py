"""WebShop without its server: a catalogue, its search engine, the pages, the actions and the reward, in process.

from shop import Expert, Session, Shop, read_goals

shop, goals = Shop(Path("data/catalogue")), read_goals(Path("data/goals.jsonl"))
session = Session(shop, goals[0])                    # session.observation, session.available()
step = session.step("search[red cotton shirt]")      # step.observation, step.reward, step.done
"""

from .catalogue import Goal, Product, Shop, read_goals, stock
from .expert import Expert, play_out
from .reward import reward
from .session import Session, Step

__all__ = [
    "Expert",
    "Goal",
    "Product",
    "Session",
    "Shop",
    "Step",
    "play_out",
    "read_goals",
    "reward",
    "stock",
]
