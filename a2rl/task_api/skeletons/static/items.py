"""What an item asks, and what an answer earns. Agents get this file as it is, so it imports nothing of a2rl."""

STOP = ("\n",)


def prompt(row):
    return f"Question: {row['question']}\nAnswer:"


def reward(row, answer):
    return float(answer.strip() == row["answer"])
