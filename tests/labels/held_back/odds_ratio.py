from datasets import load_dataset
from trl.experimental.orpo import ORPOConfig, ORPOTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
model = AutoModelForCausalLM.from_pretrained("models/base")
pairs = load_dataset("json", data_files="data/pairs.jsonl", split="train")
ORPOTrainer(model=model, args=ORPOConfig(output_dir="output/orpo", beta=0.1), train_dataset=pairs,
            processing_class=tok).train()
model.save_pretrained("output/orpo/final")
