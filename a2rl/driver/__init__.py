"""A stand-in for the LLM behind an agent system: it plays a scenario instead of thinking.

The real CLIs (Claude Code, Codex, Gemini CLI, ...) talk to it as to their provider, so the whole benchmark runs
offline, repeatably and for nothing: `a2rl driver gsm8k`, then point the CLI's base URL at it. What it speaks is in
`anthropic_messages`, `openai_chat`, `openai_responses` and `gemini`; what it plays in `scenario`.
"""
