"""HumanEval's prompts: what the grader asks. The agent gets this file as it is."""

ASKED = (
    "Read the following function signature and docstring, and fully implement the function described. "
    "Your response should only contain the code for this function.\n"
)


def prompt(beginning: str, chat: bool) -> str | list[dict[str, str]]:
    """Returns the model's prompt: the beginning of a program, or for a model with a chat template a request."""
    return [{"role": "user", "content": ASKED + beginning}] if chat else beginning
