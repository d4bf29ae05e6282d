"""Continuous batching for a transformers causal model: many conversations at once over one key-value cache.

A conversation is a generator: it yields a `Turn` (tokens to continue), is sent what the model has `Written`, and goes
on until it returns. Conversations of one turn are plain generation; those of many turns are episodes of an environment.
Conversations are independent: none waits for another, each has its own random numbers, and the tokens that a turn
shares with the previous one stay in the cache. What the prompts of several conversations begin with is read once and
copied to the others. A conversation that has to wait for something other than the model yields a `Future`; it gives up
its row in the cache and continues when the future is done.

    decoder = Decoder(model, {tokenizer.eos_token_id}, max_rows=64, memory_bytes=4 << 30)
    written = decoder.run([conversation(prompt) for prompt in prompts], Decoding())

It is our own because `generate()` of transformers keeps a batch until its last row is finished, and serving engines
such as vLLM have weights of their own and need a GPU to be fast. Where there is one, `VllmDecoder` runs the same
conversations on such an engine, next to the model that is being trained. Otherwise only torch and transformers are
needed: interactive tasks hand this package to agents.
Names of tensors end in their axes: R rows, T new tokens of a row, N those of all rows, S cached tokens, V vocabulary,
H heads of keys, G query heads, D head size.
"""

from a2rl.sampling.decoder.attention import attention_masks, rectangle
from a2rl.sampling.decoder.conversation import (
    Chat,
    Conversation,
    Stops,
    StopStrings,
    Turn,
    Written,
    end_tokens,
    longest_prompt,
    prompt_tokens,
    told,
)
from a2rl.sampling.decoder.engine import Decoder, Decoding, OutOfMemoryError, is_out_of_memory
from a2rl.sampling.decoder.kv_cache import unsupported_layers
from a2rl.sampling.decoder.with_vllm import VllmDecoder, awake, checkpoint_weights

__all__ = [
    "Chat",
    "Conversation",
    "Decoder",
    "Decoding",
    "OutOfMemoryError",
    "StopStrings",
    "Stops",
    "Turn",
    "VllmDecoder",
    "Written",
    "attention_masks",
    "awake",
    "checkpoint_weights",
    "end_tokens",
    "is_out_of_memory",
    "longest_prompt",
    "prompt_tokens",
    "rectangle",
    "told",
    "unsupported_layers",
]
