import torch
import torch.nn.functional as F
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup
from corpus import TextRows, pad

acc = Accelerator(gradient_accumulation_steps=4)
tok = AutoTokenizer.from_pretrained("models/base")
net = get_peft_model(AutoModelForCausalLM.from_pretrained("models/base"), LoraConfig(r=8))
loader = DataLoader(TextRows("data/train.jsonl", tok), batch_size=4, shuffle=True, collate_fn=pad)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
sched = get_cosine_schedule_with_warmup(opt, 10, len(loader))
net, opt, loader, sched = acc.prepare(net, opt, loader, sched)
for ids, mask in loader:
    with acc.accumulate(net):
        logits = net(input_ids=ids, attention_mask=mask).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=tok.pad_token_id)
        acc.backward(loss)
        opt.step(); sched.step(); opt.zero_grad()
acc.unwrap_model(net).merge_and_unload().save_pretrained("output/tuned")
