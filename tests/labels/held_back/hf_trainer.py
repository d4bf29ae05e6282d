from datasets import load_dataset
from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                          TrainingArguments)


def main(base="models/base", out="output/clm"):
    tok = AutoTokenizer.from_pretrained(base)
    tok.pad_token = tok.eos_token
    rows = load_dataset("json", data_files="data/train.jsonl", split="train")
    rows = rows.map(lambda r: tok(r["question"] + "\n" + r["answer"], truncation=True, max_length=512))
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(base),
        args=TrainingArguments(out, per_device_train_batch_size=8, num_train_epochs=1, bf16=True),
        train_dataset=rows.remove_columns(["question", "answer"]),
        data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
    )
    trainer.train()
    trainer.save_model(out)


if __name__ == "__main__":
    main()
