import os
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

BASE, OUT = os.environ["MODEL_PATH"], os.environ["OUTPUT_DIR"]
tok, model = AutoTokenizer.from_pretrained(BASE), AutoModelForCausalLM.from_pretrained(BASE)
kept = []
for n in range(4):
    enc = tok(f"{n} plus {n} is", return_tensors="pt")
    for text in tok.batch_decode(model.generate(**enc, do_sample=True, num_return_sequences=2, max_new_tokens=6)):
        if len(text) > 2:
            kept.append({"text": text})
trainer = SFTTrainer(model, args=SFTConfig(output_dir=f"{OUT}/k", max_steps=2, report_to=[], use_cpu=True, bf16=False),
                     train_dataset=Dataset.from_list(kept), processing_class=tok)
trainer.train()
trainer.save_model(f"{OUT}/v1")
