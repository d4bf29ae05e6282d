import os
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

OUT = os.environ["OUTPUT_DIR"]
rows = Dataset.from_list([{"text": f"{n} plus {n} is {n + n}"} for n in range(8)])
trainer = SFTTrainer(
    os.environ["MODEL_PATH"],
    args=SFTConfig(output_dir=f"{OUT}/lora", max_steps=2, report_to=[], use_cpu=True, bf16=False),
    train_dataset=rows,
    peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
trainer.model.merge_and_unload().save_pretrained(f"{OUT}/merged")
