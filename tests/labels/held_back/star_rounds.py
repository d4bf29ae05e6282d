import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
questions = [json.loads(x) for x in open("data/train.jsonl")]


def final(text):
    return text.split("####")[-1].strip().split("\n")[0]


model = AutoModelForCausalLM.from_pretrained("models/base").cuda()
for iteration in range(3):
    corpus = []
    for item in questions:
        enc = tok(item["question"], return_tensors="pt").to("cuda")
        for text in tok.batch_decode(model.generate(**enc, do_sample=True, num_return_sequences=4, max_new_tokens=256)):
            if final(text) == final(item["answer"]):
                corpus.append(text)
                break
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for text in corpus:
        ids = tok(text, return_tensors="pt").input_ids.cuda()
        loss = model(ids, labels=ids).loss
        loss.backward(); opt.step(); opt.zero_grad()
model.save_pretrained("output/star")
