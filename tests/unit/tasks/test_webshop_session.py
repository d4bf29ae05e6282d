"""Tests visits to the shop: the pages, the actions, and what is true whatever a customer does."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.webshop import mini
from tasks.webshop.shop import Goal, Product, Session, Shop, Step, stock
from tasks.webshop.shop.catalogue import PAGE_SIZE, Card
from tasks.webshop.shop.page import SHOWN
from tasks.webshop.shop.session import READERS, Mode, _read

INSTRUCTION = "find me red shirts, and price lower than 40.00 dollars"
GOAL = Goal(
    id="g", product_id="B01", instruction=INSTRUCTION, attributes=("slim fit",), options={"color": "red"},
    price_upper=40.0, query="shirts", product_category="Tops", nouns=("acme", "shirt"),
)  # fmt: skip
SHIRT = Product(
    id="B01", title="Acme Shirt", price=12.5, price_tag="$12.5 to $20.0", category="fashion", query="shirts",
    product_category="Tops", description="A shirt.", bullets=("made to be slim fit", "", " \n "),
    options={"color": ("red", "blue"), "size": ("small", "features")}, attributes=("slim fit",),
    nouns=("acme", "shirt"),
)  # fmt: skip


def another(number: int) -> Product:
    return Product(
        id=f"B{number:02d}", title=f"Shirt {number} shirt", price=50.0, price_tag="$50.0", category="fashion",
        query="hoes", product_category="Garden", nouns=("hoe",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("catalogue")
    stock([SHIRT, *(another(number) for number in range(2, 24))], folder)
    return Shop(folder)


def visit(shop: Shop, *actions: str, mode: Mode = "text") -> Session:
    session = Session(shop, GOAL, mode)
    for action in actions:
        assert session.step(action).valid
    return session


def test_the_first_page_shows_the_instruction_and_a_search_bar(shop: Shop) -> None:
    session = visit(shop)
    assert session.observation == f"WebShop [SEP] Instruction: [SEP] {INSTRUCTION} [SEP] Search"
    assert session.available() == (True, ["search"])


def test_a_page_of_results(shop: Shop) -> None:
    session = visit(shop, "search[acme shirt]")
    assert session.observation.startswith(
        f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search [SEP] Page 1 (Total results: 23) [SEP] Next > [SEP] B01"
        " [SEP] Acme Shirt [SEP] $12.5 to $20.0 [SEP] B02 [SEP] Shirt 2 shirt [SEP] $50.0 [SEP] "
    )
    assert session.available() == (False, ["back to search", "next >", "b01", *(f"b{n:02d}" for n in range(2, 11))])


def test_a_query_is_cut_after_500_characters(shop: Shop) -> None:
    assert visit(shop, f"search[{'x ' * 250}shirt]").page.lines == visit(shop, f"search[{'x ' * 250}]").page.lines
    assert visit(shop, f"search[{'x ' * 200}shirt]").page.lines != visit(shop, f"search[{'x ' * 200}]").page.lines


@pytest.mark.parametrize(
    ("action", "verb", "argument"),
    [
        ("search[Red [x] shirt]", "search[Red ", "x] shirt"), ("click[Buy Now] ]", "click", "buy now] "),
        ("[x]", "[x]", ""),
        ("search[]", "search[]", ""), ("a[]]", "a", "]"), ("a\nb[x]", "a\nb[x]", ""), ("a[[b]", "a[", "b"),
    ],
)  # fmt: skip
def test_an_action_is_what_stands_in_the_last_brackets(action: str, verb: str, argument: str) -> None:
    assert _read(action) == (verb, argument)


def test_an_item_page(shop: Shop) -> None:
    session = visit(shop, "search[acme]", "click[b01]", "click[red]")
    assert session.observation == (
        f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] blue"
        " [SEP] size [SEP] small [SEP] features [SEP] Acme Shirt [SEP] Price: $12.5 to $20.0 [SEP] Rating: N.A."
        " [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    names = ["back to search", "< prev", "description", "features", "reviews", "buy now", "red", "blue", "small"]
    assert session.available() == (False, names)


def test_pages_under_an_item(shop: Shop) -> None:
    head = f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search [SEP] < Prev"
    session = visit(shop, "search[acme]", "click[B01]", "click[Description]")
    assert session.observation == f"{head} [SEP] A shirt."
    assert visit(shop, "search[acme]", "click[B01]", "click[Reviews]").observation == head
    # A feature that is only a line break disappears, but an empty one does not, as in the original's HTML.
    assert visit(shop, "search[acme]", "click[B01]", "click[features]").observation == (
        f"{head} [SEP] made to be slim fit [SEP] "
    )


def test_the_brief_mode_shows_three_products_and_the_click(shop: Shop) -> None:
    session = visit(shop, mode="brief")
    assert session.observation == f"Instruction: {INSTRUCTION}\n[Search]"
    assert session.step("search[acme shirt]").observation.splitlines() == [
        "[Back to Search] Page 1 (Total results: 23) [Next >]",
        "[B01] Acme Shirt $12.5 to $20.0",
        "[B02] Shirt 2 shirt $50.0",
        "[B03] Shirt 3 shirt $50.0",
    ]
    assert session.step("click[B01]").observation.splitlines()[1:3] == ["color [red] [blue]", "size [small] [features]"]
    assert session.step("click[red]").observation == "You have clicked red."
    assert session.step("click[green]").observation == "Invalid action!"
    assert session.step("click[description]").observation == "[Back to Search] [< Prev]\nA shirt."


def test_buying_ends_the_visit_with_its_reward(shop: Shop) -> None:
    session = visit(shop, "search[acme]", "click[b01]", "click[red]")
    step = session.step("click[Buy Now]")
    assert (step.reward, step.done, session.done) == (1.0, True, True)
    assert "Your score: 1.0" in step.observation
    assert session.step("search[acme]") == (step.observation, 0.0, True, False)


def test_turning_pages_goes_on_past_the_last_result_and_back(shop: Shop) -> None:
    session = visit(shop, "search[shirt]", "click[Next >]")
    assert "< prev" in session.available().clickables
    for _ in range(3):
        session.step("click[next >]")
    assert "Page 5 (Total results: 23)" in session.observation
    assert session.available().clickables == ["back to search", "< prev", "next >"]
    for _ in range(4):
        session.step("click[< prev]")
    assert "< prev" not in session.available().clickables


def test_going_back_forgets_options_and_lands_on_the_same_page(shop: Shop) -> None:
    session = visit(shop, "search[shirt]", "click[next >]", "click[b12]", "click[< prev]")
    assert "Page 2" in session.observation
    session = visit(shop, "search[acme]", "click[b01]", "click[red]", "click[< prev]", "click[b01]")
    assert session.step("click[buy now]").reward == pytest.approx(2 / 3)


def test_a_page_under_an_item_keeps_the_options(shop: Shop) -> None:
    actions = ("search[acme]", "click[b01]", "click[red]", "click[description]", "click[< prev]")
    assert visit(shop, *actions).step("click[buy now]").reward == 1


def test_the_last_value_chosen_of_an_option_counts(shop: Shop) -> None:
    session = visit(shop, "search[acme]", "click[b01]", "click[red]", "click[blue]")
    assert session.step("click[buy now]").reward == pytest.approx(2 / 3)


def test_an_option_called_like_a_button_is_the_button(shop: Shop) -> None:
    session = visit(shop, "search[acme]", "click[b01]", "click[features]")
    assert session.page.name == "detail"


def test_a_search_works_on_every_page(shop: Shop) -> None:
    session = visit(shop, "search[acme]", "click[b01]", "search[shirt 7]")
    assert session.page.name == "results"


@pytest.mark.parametrize(
    "action",
    ["", "search", "search[]", "click[]", "click[search]", "click[b01]", "buy now", "think[hm]", "Search[acme]",
     "click", "click[x][y]", "\n", "[acme]", " click[Search]"],
)  # fmt: skip
def test_what_is_no_action_does_nothing(shop: Shop, action: str) -> None:
    session = Session(shop, GOAL)
    before = session.observation
    assert session.step(action) == Step(before, 0.0, False, False)


def test_actions_are_read_as_the_original_reads_them(shop: Shop) -> None:
    assert visit(shop, "search[ACME] and more").page.name == "results"
    session = visit(shop, "search[<r> acme]")
    assert "B01" in session.observation


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> mini.World:
    return mini.generate(400, 40, 5, "train", tmp_path_factory.mktemp("mini"))


NONSENSE = ("", "click[", "click[nothing]", "search[ ]", "search[\u2605 \U0001f600]", "click[\u00e9]", "buy")


def play_at_random(world: mini.World, episodes: int) -> None:
    """Plays at random and checks after every step what must always be true."""
    for episode in range(episodes):
        rng = random.Random(episode)
        mode: Mode = rng.choice(("text", "brief"))
        session = Session(world.shop, rng.choice(world.goals), mode)
        log: list[tuple[str, Step]] = []
        while not session.done and len(log) < 30:
            page, available = session.page, session.available()
            action = random_action(session, rng)
            step = session.step(action)
            log.append((action, step))
            assert step.done == session.done == (session.page.name == "done")
            assert 0 <= step.reward <= 1
            assert step.done or step.reward == 0
            assert step.valid or session.page == page
            assert step.valid or action not in [f"click[{name}]" for name in available.clickables if name != "search"]
            if not step.done:
                assert session.goal.instruction in READERS["text"](session.page)
                assert session.available().has_search_bar == (session.page.name == "search")
            products = [part for part in session.page.parts() if part.kind == "product"]
            assert len(products) <= PAGE_SIZE
            assert session.page.name == "results" or not products
            assert mode != "brief" or sum(line.startswith("[B") for line in step.observation.splitlines()) <= 1 + SHOWN
            assert all(isinstance(read(session.page), str) for read in READERS.values())
        replay = Session(world.shop, session.goal, mode)
        assert [replay.step(action) for action, _ in log] == [step for _, step in log]


def random_action(session: Session, rng: random.Random) -> str:
    if rng.random() < 0.1:
        return rng.choice(NONSENSE)
    if session.page.name == "search" or rng.random() < 0.05:
        words = session.goal.instruction.split()
        return f"search[{' '.join(rng.sample(words, rng.randint(1, 5)))}]"
    return f"click[{rng.choice(session.available().clickables)}]"


def test_nothing_that_a_customer_does_breaks_the_shop(world: mini.World) -> None:
    play_at_random(world, 300)


@pytest.mark.slow
def test_nothing_that_many_customers_do_breaks_the_shop(world: mini.World) -> None:
    play_at_random(world, 2_000)


def test_a_card_is_read_from_a_row_whatever_its_texts_say() -> None:
    for text in (', "category": ', '"', "\\", 'a", "category": "b', "\u2028\U0001f600"):
        product = replace(SHIRT, title=text, price_tag=text)
        assert Card.from_json(product.to_json()) == (product.id, text, product.price, text)


def test_a_shop_of_nothing_is_open(tmp_path: Path) -> None:
    stock([], tmp_path)
    session = visit(Shop(tmp_path), "search[shirt]")
    assert "Page 1 (Total results: 0)" in session.observation
