"""The decoder for an engine of vLLM that is in this process, next to the model that is being trained.

An engine has weights of its own, which it takes over before it plays. Between times it can leave its memory to others
(vLLM's sleep mode). It must have been made with VLLM_ENABLE_V1_MULTIPROCESSING=0, or else it is in another process.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from a2rl.sampling.decoder.conversation import Conversation, Dialogue, Dialogues, Stops, mark_stopped
from a2rl.sampling.decoder.engine import Decoding

T = TypeVar("T")
_NUMBERS = itertools.count()
"""Of requests: an engine must not get the same one twice."""


class VllmDecoder:
    """Runs conversations on an engine of vLLM; tokens end a turn exactly where `Decoder` ends it."""

    def __init__(self, llm: Any, eos: set[int]) -> None:
        """Prepares decoding.

        Args:
            llm: A `vllm.LLM`. Made with `logprobs_mode="processed_logprobs"`, it reports the log probabilities under
                the sampling distribution.
            eos: Tokens that end a turn.
        """
        self._engine, self._eos = llm.llm_engine, eos
        self._context: int = self._engine.model_config.max_model_len

    def run(self, conversations: Sequence[Conversation[T]], decoding: Decoding, stops: Stops | None = None) -> list[T]:
        """Runs all conversations to their end, as `Decoder.run` does. A turn also ends with the engine's context."""
        dialogues = Dialogues(conversations, decoding.seed)
        ready, asked = dialogues.ready, dict[str, Dialogue[T]]()
        try:
            while ready or asked or dialogues.waiting:
                for dialogue in ready:
                    asked[self._ask(dialogue, decoding)] = dialogue
                ready = dialogues.resumed(block=not asked)
                for dialogue in self._step(asked, stops):
                    if dialogues.advance(dialogue, dialogue.turn):
                        ready.append(dialogue)
        finally:
            self._engine.abort_request(list(asked))
        return dialogues.results()

    def _ask(self, dialogue: Dialogue[T], decoding: Decoding) -> str:
        """Adds a turn to the engine's batch, and returns the name of the request."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        samples = decoding.temperature > 0
        # A prompt that fills the context loses its beginning.
        tokens = dialogue.tokens[1 - self._context :]
        sampling = SamplingParams(
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            seed=dialogue.uniform.getrandbits(63) if samples else None,
            max_tokens=min(dialogue.limit, self._context - len(tokens)),
            stop_token_ids=sorted(self._eos),
            logprobs=0 if samples else None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        name = str(next(_NUMBERS))
        self._engine.add_request(name, TokensPrompt(prompt_token_ids=tokens), sampling)
        return name

    def _step(self, asked: dict[str, Dialogue[T]], stops: Stops | None) -> list[Dialogue[T]]:
        """Makes one pass of the model, and returns the dialogues whose turn has ended."""
        outputs = [output for output in self._engine.step() if output.request_id in asked] if asked else []
        for output in outputs:
            [new] = output.outputs
            dialogue = asked[output.request_id]
            dialogue.tokens += new.token_ids
            dialogue.logprobs += [
                of_token[token].logprob for token, of_token in zip(new.token_ids, new.logprobs or (), strict=False)
            ]
        mark_stopped([asked[output.request_id] for output in outputs], self._eos, stops)
        ended = [output for output in outputs if output.finished or asked[output.request_id].stopped]
        self._engine.abort_request([output.request_id for output in ended if not output.finished])
        return [asked.pop(output.request_id) for output in ended]


@contextmanager
def awake(llm: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[None]:
    """An engine of vLLM with some weights, by the names that a checkpoint has; afterwards, it sleeps if it can.

    vLLM only logs a warning if it does not get all of its weights.
    """
    sleeps = llm.llm_engine.vllm_config.model_config.enable_sleep_mode
    if sleeps:
        llm.wake_up(tags=["weights"])
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    llm.apply_model(_pack_tied_head)
    if sleeps:
        llm.wake_up(tags=["kv_cache"])
    llm.reset_prefix_cache()
    try:
        yield
    finally:
        if sleeps:
            llm.sleep(level=2)


@torch.no_grad()
def checkpoint_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights of a model of transformers as a checkpoint has them; an adapter of peft is added to them."""
    adapted = {name: each for name, each in model.named_modules() if hasattr(each, "get_delta_weight")}
    for name, weights in model.named_parameters():
        if "lora_" in name:
            continue
        whole = weights.detach()
        if (layer := adapted.get(name.removesuffix(".base_layer.weight"))) is not None:
            known = [each for each in layer.active_adapters if each in layer.scaling]
            whole = sum((layer.get_delta_weight(each) for each in known if each not in layer.merged_adapters), whole)
        yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), whole


def _pack_tied_head(module: torch.nn.Module) -> None:
    """Renews the copy of the embedding that vLLM 0.32 packs as the head for a processor, and leaves as it is when it
    gets other weights."""
    part: Any
    for part in module.modules():
        if callable(getattr(part, "cpu_linear", None)) and part.weight.numel():
            part.quant_method.process_weights_after_loading(part)
