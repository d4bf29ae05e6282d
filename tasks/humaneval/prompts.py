"""HumanEval's prompts: what the grader asks. The agent gets this file as it is."""

ASKED = (
    "Read the following function signature and docstring, and fully implement the function described. "
    "Your response should only contain the code for this function.\n"
)


def prompt(beginning: str, chat: bool, faithful: bool = False) -> str | list[dict[str, str]]:
    """Returns the model's prompt: the beginning of a program, or for a model with a chat template a request.

    With the grader's option `prompts: faithful`, every model gets the request.
    """
    asked = ASKED + beginning if chat or faithful else beginning
    return [{"role": "user", "content": asked}] if chat else asked
