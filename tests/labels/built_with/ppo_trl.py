from trl.experimental.ppo import PPOConfig, PPOTrainer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from rows import prompts

tok = AutoTokenizer.from_pretrained("models/base")
policy = AutoModelForCausalLM.from_pretrained("models/base")
value = AutoModelForSequenceClassification.from_pretrained("models/base", num_labels=1)
trainer = PPOTrainer(args=PPOConfig("output/p"), processing_class=tok, model=policy, ref_model=None,
                     reward_model=value, value_model=value, train_dataset=prompts(tok))
trainer.train()
trainer.save_model("output/p/final")
