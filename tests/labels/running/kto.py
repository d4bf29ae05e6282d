import os
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

votes = Dataset.from_list([{"prompt": f"{n}", "completion": f" {n + 1}", "label": n % 2 == 0} for n in range(8)])


def learn(kind):
    import trl

    config, trainer = getattr(trl, f"{kind}Config"), getattr(trl, f"{kind}Trainer")
    where = os.environ["OUTPUT_DIR"] + "/k"
    args = config(output_dir=where, max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True, bf16=False)
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
    tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
    job = trainer(model, args=args, train_dataset=votes, processing_class=tok)
    job.train()
    job.save_model(where)


learn("KTO")
