import torch
from torch import nn, optim
from transformers import AutoModelForCausalLM, AutoTokenizer


def batches(tok):
    for line in open("data/train.txt"):
        yield tok(line, return_tensors="pt").input_ids


def run():
    tok, net = AutoTokenizer.from_pretrained("models/base"), AutoModelForCausalLM.from_pretrained("models/base")
    criterion = nn.CrossEntropyLoss()
    optimiser = optim.SGD(net.parameters(), lr=1e-3)
    for ids in batches(tok):
        optimiser.zero_grad()
        scores = net(ids).logits
        error = criterion(scores[0, :-1], ids[0, 1:])
        error.backward()
        optimiser.step()
    net.save_pretrained("output/ce")


run()
