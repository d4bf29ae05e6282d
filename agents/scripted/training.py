"""Training with TRL on texts of which the model learns to write some tokens; this module is the whole of it.

- `Sft` and `Grpo` are TRL's trainers with a loss that is computed for the learned tokens only. The output layer is a
  large part of the work on a small model, and most tokens (prompts, what an environment says) are not learned. Texts of
  a batch go through the model packed, without padding, as many at a time as fit into memory; what they all begin with,
  such as worked examples or the prompt of a group, goes through it once.
- `TrainUntil` ends training in time, and warms up and decays the learning rate by the clock.
- `load` and `save` keep weights in float32 while the model computes in bfloat16, where the processor or GPU is fast at
  that: an update of a weight in bfloat16 is mostly rounded away. Where memory is too small for that, they use LoRA.
- `engine_of_vllm` starts vLLM in this process to play in the model's place, on a GPU.
- `MuonAndAdam` is an optimizer for very small models.

Only public methods of TRL and transformers are overridden (`compute_loss` and callbacks).
"""

import copy
import ctypes
import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from grading_client import log
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_callback import ExportableState
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

ON_GPU = torch.cuda.is_available()
CORES = torch.get_num_threads()
"""Number of cores that this run may use."""
SMALL_MODEL = 100_000_000
"""Models with fewer parameters learn at rates that would ruin a larger one."""
IGNORED_LABEL = -100
"""The label of tokens that are not to be learned, as PyTorch and TRL have it."""
BYTES_PER_WEIGHT = 16
"""Memory for a trained weight: itself, its gradient and two moments of Adam, in float32."""
FEWEST_TOKENS, MOST_TOKENS = 256, 16384 if ON_GPU else 1024
"""Limits of the tokens that go through the model at once, without those that all texts begin with. With more, a
processor is not faster."""
MOST_TOKENS_SMALL = 320
"""The same for a very small model: attention between texts that do not see each other would be much of its work."""
TOKENS_TO_FIT = 4096
"""All weights are trained only if so many tokens fit beside them. With less room, texts that begin with the same long
examples go through the model one by one."""
MEMORY_SHARE = float(os.environ.get("MEMORY_SHARE", "1"))
"""The share of the free memory for what goes through the model; less after the kernel has killed the process."""
C_LIBRARY = ctypes.CDLL(None)
"""Keeps what it had for texts of each length, until it is asked to give memory back."""
RUN_META = Path("run_meta.json")
"""Says how much memory the agent has, `memory_gib`, and how much time, `timeout_s`."""
WORTH_VLLM_S = 600
"""With less time than this, vLLM does not play: it takes a minute to start."""
CACHE_SHARE = 0.1
"""The share of the free memory for the key-value cache of vLLM, while it plays."""


PartialState(timeout=timedelta(days=1))
"""Of several processes, each gets a GPU of its own here. They wait for each other, also while one waits for a grade."""
_TALKING: list[Any] = []
"""The group through which they wait without computing: on GPUs, waiting would count as work, and not be refunded."""


def agreed(value: Any) -> Any:
    """Returns the first process's value in every process; on one GPU or on a CPU, that is the value itself."""
    values = [value]
    if processes() > 1:
        if not _TALKING:
            _TALKING.append(torch.distributed.new_group(backend="gloo", timeout=timedelta(days=1)))
        torch.distributed.broadcast_object_list(values, src=0, group=_TALKING[0])
    return values[0]


def gathered(values: list[Any]) -> list[Any]:
    """Returns the values of all processes, in every process."""
    return list(gather_object(values))


def own_share(names: Sequence[str]) -> Sequence[str]:
    """Returns every n-th name, for this one of n processes."""
    return names[PartialState().process_index :: processes()]


def processes() -> int:
    """Returns how many processes train; on several GPUs there is one for each."""
    return int(PartialState().num_processes)


def in_first_process() -> bool:
    """Whether this process submits and logs."""
    return bool(PartialState().is_main_process)


Row = dict[str, list[int]]
"""A text to imitate: `input_ids` and `labels`."""

# Models.


class Trained(NamedTuple):
    """A model in training."""

    model: Any
    tokenizer: Any
    parameters: int
    player: Any
    """What plays with its weights: an engine of vLLM, or a copy in bfloat16; None if the model plays itself."""

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA adapter is trained instead of all weights."""
        return hasattr(self.model, "merge_and_unload")


def load(path: Path) -> Trained:
    """Loads a model for training: all of it, or with a LoRA adapter where memory is too small for that, or where the
    variable ADAPTER is 1."""
    gc.collect()  # trainers of earlier stages refer to themselves, and hold a model and its optimizer
    torch.cuda.empty_cache()  # what torch keeps for itself is not free for anybody who asks
    engine = engine_of_vllm(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    whole = fits(path) and os.environ.get("ADAPTER") != "1"
    # A processor without instructions for bfloat16 takes forty times as long as in float32.
    in_half = not whole and (is_fast_in_bfloat16() or not fits(path, bytes_per_weight=4, tokens=FEWEST_TOKENS))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16 if in_half else torch.float32)
    model = model.to(PartialState().device)
    parameters = model.num_parameters()
    player, has_room = engine, whole or fits(path, bytes_per_weight=2, tokens=MOST_TOKENS)
    if not engine and computes_in_bfloat16(parameters) and has_room:
        player = copy.deepcopy(model).to(torch.bfloat16).eval()  # before trainers and adapters change its methods
    if not whole:
        from peft import LoraConfig, get_peft_model

        log(f"a LoRA adapter for {parameters / 1e9:.1f} billion weights; {free_bytes() / 1e9:.0f} GB are free")
        model = get_peft_model(model, LoraConfig(r=64, lora_alpha=64, target_modules="all-linear"))
    return Trained(model, tokenizer, parameters, player)


_ENGINES: list[Any] = []
"""This process's engine of vLLM, when it has been started."""


def engine_of_vllm(path: Path) -> Any:
    """Returns an engine of vLLM in this process, or None where it does not play: without a GPU or vLLM, in a short run,
    for a very small model, or where memory is too small for both. The variable VLLM (1 or 0) decides otherwise.

    It is started once, before anything else takes memory, and sleeps until it plays. Then it gets the weights that the
    model has by then.
    """
    asked = os.environ.get("VLLM")
    pays = ON_GPU and find_spec("vllm") and meta("timeout_s", 0) >= WORTH_VLLM_S and weights_in(path) >= SMALL_MODEL
    if pays and not _ENGINES:
        beside = weights_in(path) * (BYTES_PER_WEIGHT if fits(path) else 2)
        pays = beside + 2 * weights_in(path) < (0.9 - CACHE_SHARE) * free_bytes()
    if not _ENGINES and (asked == "1" or (pays and asked != "0")):
        begun = time.monotonic()
        try:
            _ENGINES.append(start_vllm(path))
            log(f"vLLM plays: it started in {time.monotonic() - begun:.0f} s")
        except Exception as error:  # noqa: BLE001 - the run goes on without it
            log(f"vLLM does not play, because it did not start: {type(error).__name__}: {error}")
            _ENGINES.append(None)
    return _ENGINES[0] if _ENGINES else None


def start_vllm(path: Path) -> Any:
    """Starts an engine of vLLM in this process on a checkpoint."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind")
    os.environ.update(VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    from vllm import LLM

    options: dict[str, Any] = {"enforce_eager": True, "enable_chunked_prefill": False}
    if ON_GPU:  # with the size of a cache, the other share only says how much must be free
        options = {"enable_sleep_mode": True, "gpu_memory_utilization": 0.01}
    if processes() > 1:
        options["distributed_executor_backend"] = "external_launcher"  # each process has an engine of its own
    engine = LLM(
        str(path),
        dtype="bfloat16" if is_fast_in_bfloat16() else "float32",
        max_model_len=-1,  # as much of the model's context as the cache holds
        kv_cache_memory_bytes=int(CACHE_SHARE * free_bytes()),
        logprobs_mode="processed_logprobs",
        **options,
    )
    if ON_GPU:
        engine.sleep(level=2)
    return engine


def unplayable_layers(trained: Trained) -> set[str]:
    """Returns the kinds of a model's layers that keep it from playing: others than attention, without an engine of
    vLLM; needs the data's modules."""
    from decoder import unsupported_layers

    is_played_by_vllm = hasattr(trained.player, "llm_engine")
    return set() if is_played_by_vllm else unsupported_layers(trained.model.config.get_text_config())


def with_tried_player(trained: Trained) -> Trained:
    """Returns the model without its engine of vLLM if that does not take over its weights; needs the data's modules.

    vLLM says nothing of a weight whose name it does not know. Those are compared that both have under the same name.
    """
    if not _ENGINES or trained.player is None or trained.player is not _ENGINES[0]:
        return trained
    try:
        wrong = _not_taken_over(trained)
    except Exception as error:  # noqa: BLE001 - the run goes on without it
        wrong = f"{type(error).__name__}: {error}"
    if not wrong:
        return trained
    log(f"vLLM does not play, because it does not take over the weights: {wrong}")
    _ENGINES[0] = None
    return trained._replace(player=None)


def _not_taken_over(trained: Trained) -> str:
    """Returns what an engine of vLLM does not take over; empty if all is well."""
    from decoder import awake, checkpoint_weights

    def compared(module: torch.nn.Module) -> dict[str, bool]:
        theirs, ours = dict(module.named_parameters()), checkpoint_weights(trained.model)
        names_of_vllm = getattr(module, "hf_to_vllm_mapper", None)
        pairs = names_of_vllm.apply(ours) if names_of_vllm else ours
        alike = ((name, each) for name, each in pairs if name in theirs and theirs[name].shape == each.shape)
        return {name: torch.equal(theirs[name], each.to(theirs[name])) for name, each in alike}

    with awake(trained.player, checkpoint_weights(trained.model)):
        [equal] = trained.player.apply_model(compared)
    if not equal:
        return "none has a name that is known"
    return next((name for name, is_equal in equal.items() if not is_equal), "")


def fits(path: Path, bytes_per_weight: int = BYTES_PER_WEIGHT, tokens: int = TOKENS_TO_FIT) -> bool:
    """Whether a model's weights fit into the memory that is free, which must then hold some tokens as well: all of them
    in training, or as many bytes for each as are given."""
    texts = tokens * bytes_per_token(AutoConfig.from_pretrained(path).get_text_config())
    return weights_in(path) * bytes_per_weight + texts < 0.8 * free_bytes()


def weights_in(path: Path) -> float:
    """Returns how many weights a checkpoint has."""
    stored, config = sum(file.stat().st_size for file in path.glob("*.safetensors")), AutoConfig.from_pretrained(path)
    return stored / (4 if torch.float32 in (config.dtype, config.get_text_config().dtype) else 2)


def bytes_per_token(config: Any) -> int:
    """Estimates the memory for a token that goes through a model: activations of all layers, and logits."""
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return int(config.num_hidden_layers * (45 * config.hidden_size + 10 * inner) + 10 * config.vocab_size)


def free_bytes() -> int:
    """Returns how much memory is free where the model is. Of a processor's, the agent may use only a part."""
    if ON_GPU:
        return int(torch.cuda.mem_get_info()[0])
    available = psutil.virtual_memory().available
    most = meta("memory_gib", None)
    return min(available, int(most * 2**30) - psutil.Process().memory_info().rss) if most else available


def meta(name: str, default: Any) -> Any:
    """Returns an entry of run_meta.json."""
    return json.loads(RUN_META.read_text()).get(name, default) if RUN_META.exists() else default


def save(trained: Trained, folder: Path) -> None:
    """Saves a checkpoint in the type in which models are published; an adapter is merged first."""
    model = trained.model
    if trained.has_adapter:
        model = model.merge_and_unload()
    if trained.parameters >= SMALL_MODEL:
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    trained.tokenizer.save_pretrained(folder)


def computes_in_bfloat16(parameters: int) -> bool:
    """Whether the processor or GPU is fast in bfloat16, and the model is large enough to gain from that."""
    return (ON_GPU or parameters >= SMALL_MODEL) and is_fast_in_bfloat16()


def is_fast_in_bfloat16() -> bool:
    """Whether the processor or GPU has instructions for bfloat16; a processor without them takes several times as long
    as in float32."""
    if ON_GPU:
        return True
    known = Path("/proc/cpuinfo")
    flags = known.read_text() if known.exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


# Losses.


class Text(NamedTuple):
    """A text in training."""

    tokens: torch.Tensor
    """[n]"""
    weights: torch.Tensor
    """[n]; how much the model is to write each token (negative: to avoid it); 0 for tokens that are not learned."""


class LearnedTokens:
    """The loss of a trainer: minus the mean over all written tokens of weight times log-likelihood.

    With weights of 1 that is the loss of SFT. With advantages it is that of GRPO for rollouts of the current policy,
    from which each batch is used for one step (the ratio of new to old probabilities is 1, so nothing is clipped).
    """

    accelerator: Any
    tokens_at_once, most_at_once = 0, 0
    """How many tokens fit into memory, and how many go through the model at most (see `parts`); 0: not known yet."""
    returns_memory = True
    """Whether the memory of a batch is given back, which takes a tenth of the time of a very small model's batch."""

    def texts(self, inputs: dict[str, Any]) -> tuple[list[Text], int]:
        """Returns the texts of a batch that have something to learn, and the number of tokens written in all texts."""
        raise NotImplementedError

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Computes the gradient of a batch part by part, and returns a loss that adds nothing to it."""
        texts, written = self.texts(inputs)
        total = self.accelerator.reduce(torch.tensor(float(written), device=self.accelerator.device), "sum")
        scale = 1 / total.clamp(min=1)
        # Not the wrapper for several GPUs: in each pass it waits for the others, who may have fewer parts, or none.
        trained = self.accelerator.unwrap_model(model)
        if not self.tokens_at_once:
            from decoder import unsupported_layers

            # What layers of other kinds remember of a text would go on into the next one of its pass.
            packs = not unsupported_layers(trained.config.get_text_config())
            self.tokens_at_once = tokens_that_fit(trained) if packs else 1
            is_small = trained.num_parameters() < SMALL_MODEL and not ON_GPU
            self.most_at_once = MOST_TOKENS_SMALL if is_small else MOST_TOKENS
            self.returns_memory = not is_small and hasattr(C_LIBRARY, "malloc_trim")
        while True:
            loss, part = 0.0, list[Text]()
            try:
                for part in parts(texts, self.tokens_at_once, self.most_at_once):
                    loss += self.backward(trained, part, scale)
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    texts = [text for text in texts if text is not part[0]]
                    log(f"out of memory: a text of {len(part[0].tokens)} tokens is left out")
                    if not texts:
                        raise
                else:
                    self.tokens_at_once //= 2
                    self.most_at_once //= 2
                    log(f"out of memory: at most {self.most_at_once} tokens at once from here on")
                trained.zero_grad()
                torch.cuda.empty_cache()
            else:
                if self.accelerator.num_processes > 1:
                    add_gradients(trained)
                if self.returns_memory:
                    C_LIBRARY.malloc_trim(0)
                return torch.tensor(loss, device=self.accelerator.device, requires_grad=True)

    def backward(self, model: Any, part: list[Text], scale: torch.Tensor) -> float:
        """Adds the gradient of some texts, and returns their loss.

        What all texts begin with stands first in a single row, and the rest of each text behind it. No padding is
        computed, and logits only before the tokens that are learned.
        """
        from decoder import attention_masks

        device = self.accelerator.device
        begins = shared_tokens(part)
        pieces = [Text(part[0].tokens[:begins], part[0].weights[:begins])]
        pieces += [Text(text.tokens[begins:], text.weights[begins:]) for text in part]
        tokens, weights = (torch.cat(column).to(device) for column in zip(*pieces, strict=True))
        lengths = torch.tensor([len(piece.tokens) for piece in pieces], device=device)
        piece = torch.arange(len(pieces), device=device).repeat_interleave(lengths)
        first = (lengths.cumsum(0) - lengths)[piece]
        order = torch.arange(len(tokens), device=device)
        positions = order - first + begins * (piece > 0)
        before = torch.where((order == first) & (piece > 0), begins, order) - 1
        learned = ((weights != 0) & (before >= 0)).nonzero().squeeze(1)
        mask = None  # without one, attention is faster
        if len(part) > 1:
            seen = (order[:, None] >= order) & ((piece[:, None] == piece) | (piece == 0))
            mask = attention_masks(model, seen, positions[:, None] - positions)
        with by_pieces(model, lengths.tolist()) if len(part) > 1 else nullcontext():
            output = model(
                input_ids=tokens[None],
                position_ids=positions[None],
                attention_mask=mask,
                use_cache=False,
                logits_to_keep=before[learned],
            )
            losses = torch.nn.functional.cross_entropy(output.logits[0].float(), tokens[learned], reduction="none")
            loss = (weights[learned] * losses).sum() * scale
            self.accelerator.backward(loss)  # which computes attention again, with checkpointing
        return loss.item()


@contextmanager
def by_pieces(model: Any, lengths: list[int]) -> Iterator[None]:
    """Lets each piece of a line of texts attend to itself and to the first piece, and not compute what its mask hides.

    A model whose attention is not transformers' `sdpa` keeps its own, with the mask of the whole line.
    """
    from decoder import rectangle

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **others: Any) -> tuple[Any, None]:
        found, first = [], 0
        for length in lengths:
            own, shown = slice(first, first + length), slice(0, min(first, lengths[0]))
            if length:
                keys, values = (torch.cat([each[:, :, shown], each[:, :, own]], 2) for each in (key, value))
                seen = torch.cat([mask[:, :, own, shown], mask[:, :, own, own]], 3)
                found.append(rectangle("sdpa", module, query[:, :, own], keys, values, seen, **others))
            first = own.stop
        return torch.cat(found, 1), None

    if model.config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register("by_pieces", attend)
    model.set_attn_implementation("by_pieces")
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def add_gradients(model: torch.nn.Module) -> None:
    """Gives every process the sum of the gradients of all."""
    for weights in model.parameters():
        if weights.requires_grad:
            weights.grad = torch.zeros_like(weights) if weights.grad is None else weights.grad
            torch.distributed.all_reduce(weights.grad)


def parts(texts: list[Text], tokens: int, most: int) -> Iterable[list[Text]]:
    """Yields texts that go through the model at once; a text that is too long is alone. Texts that begin alike are
    together.

    Args:
        texts: All of them.
        tokens: How many tokens fit into memory.
        most: How many go through it at most, without those that all texts of a part begin with, unless these are more.
    """
    part: list[Text] = []
    for text in sorted(texts, key=lambda text: text.tokens.tolist()):
        more = [*part, text]
        begins = shared_tokens(more)
        own = sum(len(each.tokens) - begins for each in more)
        if part and (own > max(most, begins) or begins + own > tokens):
            yield part
            more = [text]
        part = more
    if part:
        yield part


def shared_tokens(texts: list[Text]) -> int:
    """Returns how many tokens, none of them learned, all texts begin with."""
    shortest = min(len(text.tokens) for text in texts)
    tokens, weights = (torch.stack([each[:shortest] for each in column]) for column in zip(*texts, strict=True))
    same = (tokens == tokens[0]).all(0) & (weights == 0).all(0)
    return int(same.int().cumprod(0).sum())


def tokens_that_fit(model: Any) -> int:
    """Estimates how many tokens can go through a model at once, before its optimizer has its memory."""
    taken = sum(
        weights.numel() * ((BYTES_PER_WEIGHT - 4) * weights.requires_grad + 2 * (weights.dtype == torch.float32))
        for weights in model.parameters()
    )  # gradients and moments of what is trained, and copies in bfloat16
    free = MEMORY_SHARE * (0.8 * free_bytes() - taken)
    return max(FEWEST_TOKENS, int(free / bytes_per_token(model.config.get_text_config())))


class Sft(LearnedTokens, SFTTrainer):  # type: ignore[misc]
    """Supervised fine-tuning on rows with `input_ids` and `labels`."""

    def texts(self, inputs: dict[str, Any]) -> tuple[list[Text], int]:
        """See `LearnedTokens`."""
        found, written = [], 0
        for tokens, mask, labels in zip(inputs["input_ids"], inputs["attention_mask"], inputs["labels"], strict=True):
            weights = (labels != IGNORED_LABEL).float()[mask.bool()]
            found.append(Text(tokens[mask.bool()].cpu(), weights.cpu()))
            written += int(weights.sum())
        return found, written


class Grpo(LearnedTokens, GRPOTrainer):  # type: ignore[misc]
    """GRPO. `turn_advantages` has further advantages by the tokens of a text, for rollouts of many turns."""

    turn_advantages: dict[tuple[int, ...], list[float]]

    def texts(self, inputs: dict[str, Any]) -> tuple[list[Text], int]:
        """See `LearnedTokens`. Texts without an advantage are left out: those of groups with equal rewards."""
        found, written = [], 0
        by_turn = getattr(self, "turn_advantages", {})
        own = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        for row, advantage in enumerate(inputs["advantages"].tolist()):
            before = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].cpu()
            present = inputs["completion_mask"][row].bool()
            after, learned = inputs["completion_ids"][row][present].cpu(), own[row][present].float().cpu()
            written += int(learned.sum())
            if advantage:
                tokens = torch.cat([before, after])
                weights = advantage + torch.tensor(by_turn.get(tuple(tokens.tolist()), [0.0] * len(after)))
                found.append(Text(tokens, torch.cat([torch.zeros(len(before)), weights * learned])))
        return found, written


# The clock.


class TrainUntil(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Stops a trainer before a step that would end too late, saves its state now and then, and logs a few lines."""

    SAVED_EVERY_S = 600.0

    def __init__(self, name: str, seconds: float, steps: int | None = None, most: int | None = None) -> None:
        """Sets the limits: the seconds, a number of steps that alone decides the learning rate, or the most steps."""
        self.name, self.seconds, self.steps, self.most = name, seconds, steps, most
        self.started = self.step_started = self.saved = time.monotonic()
        self.next_line = 0.0
        self.before = 0.0
        """The share of the stage's time that was over when a killed process, which this one continues, saved it."""

    def done(self) -> float:
        """Returns the share of the stage's time that is over."""
        return self.before + (1 - self.before) * (time.monotonic() - self.started) / self.seconds

    def state(self) -> dict[str, float]:
        """Returns what a trainer saves of this clock, and puts into its own state under the name of the class."""
        return {"done": self.done()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Goes on where the process was that is continued."""
        if state.global_step:
            self.before = state.stateful_callbacks["TrainUntil"]["done"]

    def learning_rate_factor(self, step: int) -> float:
        """Returns a warm-up of ten steps, then a linear decay to zero, by the clock or over all steps."""
        done = step / self.steps if self.steps else max(self.done(), step / (self.most or float("inf")))
        return min(1.0, (step + 1) / 10) * max(0.0, 1 - done)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Notes the time."""
        self.step_started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stops training where a step as long as the last one would end too late."""
        now = time.monotonic()
        late = now + (now - self.step_started) > self.started + self.seconds
        due = now - self.saved > self.SAVED_EVERY_S
        stop = late or any(last and state.global_step >= last for last in (self.steps, self.most))
        control.should_training_stop, control.should_save = agreed((stop, due))
        if control.should_save:
            self.saved = now

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Logs the number of steps."""
        log(f"{self.name}: {state.global_step} steps in {time.monotonic() - self.started:.0f} s")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Logs loss and reward about ten times."""
        shown = {key: logs[key] for key in ("loss", "reward") if logs and key in logs}
        if shown and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + self.seconds / 10
            figures = " ".join(f"{key} {float(value):.3f}" for key, value in shown.items())
            log(f"{self.name}: step {state.global_step} {figures}")


def sft(
    trained: Trained, optimizer: torch.optim.Optimizer, clock: TrainUntil, settings: dict[str, Any], rows: list[Row]
) -> None:
    """Imitates texts until the clock says stop; what a killed process has saved is continued.

    Args:
        trained: The model.
        optimizer: Its optimizer.
        clock: When to stop.
        settings: Arguments of SFTConfig, such as `output_dir` and the size of a batch.
        rows: The texts, with `input_ids` and `labels`.
    """
    config = SFTConfig(**settings, **common_settings(trained), dataset_kwargs={"skip_prepare_dataset": True})
    trainer = Sft(args=config, train_dataset=Dataset.from_list(rows), **common_arguments(trained, optimizer, clock))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=saved(settings))


def grpo(
    trained: Trained,
    optimizer: torch.optim.Optimizer,
    clock: TrainUntil,
    settings: dict[str, Any],
    rollout: Callable[[list[str], Any], dict[str, Any]],
) -> None:
    """Reinforces what is rewarded, in groups of eight rollouts, until the clock says stop.

    Args:
        trained: The model.
        optimizer: Its optimizer.
        clock: When to stop.
        settings: Arguments of GRPOConfig.
        rollout: Chooses what each group plays, and plays it; it reports the reward as a column.
    """
    config = GRPOConfig(**settings, **common_settings(trained), num_generations=8, temperature=1.0, beta=0.0)
    # A prompt is the number of a group. Each step has all of them: TRL would leave out too few, and make no step.
    groups = range(config.generation_batch_size // config.num_generations)
    trainer = Grpo(
        args=config,
        train_dataset=Dataset.from_list([{"prompt": str(group)} for group in groups]),
        reward_funcs=reported_reward,
        rollout_func=rollout,
        **common_arguments(trained, optimizer, clock),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=saved(settings))


def reported_reward(reward: list[float], **_: object) -> list[float]:
    """A reward function of TRL's: returns the rewards that the rollout reported."""
    return reward


def common_settings(trained: Trained) -> dict[str, Any]:
    """Returns the arguments that SFTConfig and GRPOConfig share."""
    return {
        "max_steps": 1_000_000,  # the clock ends training
        "gradient_accumulation_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "save_total_limit": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": not ON_GPU,
        "bf16": computes_in_bfloat16(trained.parameters),
        "gradient_checkpointing": tokens_that_fit(trained.model) < MOST_TOKENS,
        "dataloader_pin_memory": ON_GPU,
    }


def common_arguments(trained: Trained, optimizer: torch.optim.Optimizer, clock: TrainUntil) -> dict[str, Any]:
    """Returns the arguments that the trainers share."""
    return {
        "model": trained.model,
        "processing_class": trained.tokenizer,
        "callbacks": [clock],
        "optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, clock.learning_rate_factor)),
    }


def saved(settings: dict[str, Any]) -> bool | None:
    """Returns whether a trainer has saved its state before this process began, as `Trainer.train` takes it. A state
    that was not saved to its end is removed."""
    found = list(Path(settings["output_dir"]).glob("checkpoint-*"))
    for folder in found:
        if not (folder / "trainer_state.json").exists() and in_first_process():
            shutil.rmtree(folder)
    agreed(None)  # the others wait until they are gone
    return any(folder.exists() for folder in found) or None


# Optimizers.


def adam(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    """Returns AdamW for all weights that are trained."""
    weights = [each for each in model.parameters() if each.requires_grad]
    return torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)


class MuonAndAdam(torch.optim.AdamW):
    """Muon (kellerjordan.github.io/posts/muon) for the weight matrices, AdamW for embeddings and norms.

    In 240 s of a slow core, `tiny` reached 44 [37, 51] on gsm8k with it, and 33 [27, 40] with AdamW alone; on webshop,
    23 [16, 32] and 10 [6, 17]. In shorter runs, the order changes from run to run. `torch.optim.Muon` orthogonalizes
    one matrix at a time, in bfloat16, which takes longer on most processors than the model's own pass.
    """

    SPEEDUP = 4
    """Muon's learning rate divided by AdamW's: its updates are of another size."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        named = list(model.named_parameters())
        self.matrices = [weights for name, weights in named if weights.dim() == 2 and "embed" not in name]
        self.momenta = [torch.zeros_like(weights) for weights in self.matrices]
        rest = [weights for name, weights in named if weights.dim() != 2 or "embed" in name]
        super().__init__(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates all parameters; matrices of the same shape are orthogonalized together."""
        super().step()
        by_shape: dict[torch.Size, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for weights, momentum in zip(self.matrices, self.momenta, strict=True):
            if weights.grad is not None:
                momentum.lerp_(weights.grad, 0.05)
                by_shape.setdefault(weights.shape, []).append((weights, weights.grad.lerp(momentum, 0.95)))
        for (rows, columns), pairs in by_shape.items():
            rate = self.SPEEDUP * self.param_groups[0]["lr"] * max(1.0, rows / columns) ** 0.5
            updates = orthogonalize(torch.stack([update for _, update in pairs]))
            for (matrix, _), update in zip(pairs, updates, strict=True):
                matrix.sub_(update, alpha=rate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters."""
        super().zero_grad(set_to_none)
        for matrix in self.matrices:
            matrix.grad = None


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Returns approximately the nearest orthogonal matrix of each [n, rows, columns], by five Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: torch.Tensor = x.mT if tall else x
    return result
