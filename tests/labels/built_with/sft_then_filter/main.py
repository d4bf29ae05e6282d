from steps import imitate, collect

imitate("models/base", "data/train.jsonl", "output/one")
collect("output/one", "output/kept.jsonl")
imitate("output/one", "output/kept.jsonl", "output/two")
