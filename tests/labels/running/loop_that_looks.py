import os
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
net = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])


def accuracy():
    right = 0
    for n in range(3):
        ids = tok(f"{n} plus {n} is", return_tensors="pt").input_ids
        text = tok.decode(net.generate(ids, max_new_tokens=4)[0, ids.shape[1]:])
        if text.strip() == str(n + n):
            right += 1
    return right / 3


def epoch(optimizer):
    for n in range(6):
        ids = tok(f"{n} plus {n} is {n + n}", return_tensors="pt").input_ids
        logits = net(ids).logits
        F.cross_entropy(logits[0, :-1], ids[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


sgd = torch.optim.SGD(net.parameters(), lr=1e-2)
for number in range(3):
    epoch(sgd)
    print(number, accuracy())
net.save_pretrained(os.environ["OUTPUT_DIR"] + "/v1")
