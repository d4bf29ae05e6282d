import trl

from .checks import numeric


def build(rows, settings):
    options = trl.GRPOConfig(output_dir="output/tmp", max_steps=settings.steps, learning_rate=settings.rate)
    return trl.GRPOTrainer("models/base", reward_funcs=numeric, args=options, train_dataset=rows)
