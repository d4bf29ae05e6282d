import argparse
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", default="sft", choices=["sft", "rl"])
    parser.add_argument("--model", default="models/base")
    return parser.parse_args()


def main():
    args = parse()
    rows = load_dataset("json", data_files="data/train.jsonl", split="train")
    if args.stage == "rl":
        trainer = GRPOTrainer(args.model, reward_funcs=lambda completions, **_: [len(c) for c in completions],
                              args=GRPOConfig(output_dir="output/rl"), train_dataset=rows)
    else:
        trainer = SFTTrainer(args.model, args=SFTConfig(output_dir="output/sft"), train_dataset=rows)
    trainer.train()
    trainer.save_model()


main()
