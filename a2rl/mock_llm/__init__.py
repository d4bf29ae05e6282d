"""A mock of the LLM behind an agent system: it answers with the turns of a scenario.

The real CLIs (Claude Code, Codex, Gemini CLI, ...) use it like their provider, so the whole benchmark runs offline,
repeatably and at no cost: start `a2rl driver gsm8k` and set the CLI's base URL to its address. The protocols are in
`anthropic_messages`, `openai_chat`, `openai_responses` and `gemini`; the format of scenarios is in `scenario`.
"""
