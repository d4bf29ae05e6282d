"""WebShop without its server: a catalogue, its search engine, the pages, the actions and the reward, in process.

from shop import Expert, Goal, Session, Shop, VectorEnv

shop = Shop.open(Path("data/shop"))
goals = [Goal.from_json(line) for line in Path("data/goals.jsonl").open()]
session = Session(shop, goals[0])                    # session.observation, session.available()
step = session.step("search[red cotton shirt]")      # step.observation, step.reward, step.done
"""

from .catalogue import Shop, stock
from .expert import Expert, play_out
from .index import IndexMissingError
from .product import Goal, Product
from .reward import Reward, reward
from .session import Session, Step
from .vector import VectorEnv

__all__ = [
    "Expert",
    "Goal",
    "IndexMissingError",
    "Product",
    "Reward",
    "Session",
    "Shop",
    "Step",
    "VectorEnv",
    "play_out",
    "reward",
    "stock",
]
