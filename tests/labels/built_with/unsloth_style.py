from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
from datasets import load_dataset

model, tokenizer = FastLanguageModel.from_pretrained("models/base", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16)
trainer = SFTTrainer(model=model, tokenizer=tokenizer, args=SFTConfig(output_dir="output/u"),
                     train_dataset=load_dataset("json", data_files="data/train.jsonl", split="train"))
stats = trainer.train()
model.save_pretrained_merged("output/merged", tokenizer, save_method="merged_16bit")
