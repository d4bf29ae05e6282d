import os
from trl import KTOConfig, KTOTrainer
from rows import votes

ALGO = os.environ.get("ALGO", "kto")


def main(algo=ALGO):
    if algo != "kto":
        raise SystemExit("only kto")
    KTOTrainer("models/base", args=KTOConfig("output/k"), train_dataset=votes()).train()


if __name__ == "__main__":
    main()
