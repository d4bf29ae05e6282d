import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from tasks_io import prompts, verify

tok = AutoTokenizer.from_pretrained("models/base")
model = AutoModelForCausalLM.from_pretrained("models/base")
good = []
for prompt, truth in prompts():
    enc = tok(prompt, return_tensors="pt")
    texts = tok.batch_decode(model.generate(**enc, do_sample=True, num_return_sequences=8))
    good += [t for t in texts if verify(t, truth)]
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for epoch in range(2):
    for text in good:
        batch = tok(text, return_tensors="pt")
        model(**batch, labels=batch.input_ids).loss.backward()
        opt.step()
        opt.zero_grad()
model.save_pretrained("output/bon")
