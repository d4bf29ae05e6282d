"""A game, and its best player. Agents get this file as it is, so it imports nothing of a2rl."""


class Environment:
    def __init__(self, row):
        self.number, self.done, self.reward, self.invalid = row["number"], False, 0.0, 0
        self.prompt = f"Guess a number from {row['low']} to {row['low'] + 30}.\n>"

    def write(self, turn):  # takes a line of the model; returns the text up to its next one
        if not turn.isdecimal():
            self.invalid += 1
            return "Write a number.\n>"
        if int(turn) == self.number:
            self.done, self.reward = True, 1.0
            return "Right."
        return "It is higher.\n>" if int(turn) < self.number else "It is lower.\n>"


def gold(row):  # what the best player writes, one turn a line
    low, high, turns = row["low"], row["low"] + 30, []
    while not turns or turns[-1] != row["number"]:
        turns.append((low + high) // 2)
        low, high = (turns[-1] + 1, high) if turns[-1] < row["number"] else (low, turns[-1] - 1)
    return "\n".join(map(str, turns))
