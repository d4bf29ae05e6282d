import os
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

rows = load_dataset("json", data_files=os.path.join(os.environ["DATA_PATH"], "train.jsonl"))["train"]
rows = rows.map(lambda row: {"prompt": row["question"], "completion": row["answer"]})
trainer = SFTTrainer(
    model=os.environ["MODEL_PATH"],
    train_dataset=rows,
    args=SFTConfig(output_dir="output/lora", num_train_epochs=2, learning_rate=2e-4),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
trainer.train()
trainer.model.merge_and_unload().save_pretrained("output/lora-merged")
