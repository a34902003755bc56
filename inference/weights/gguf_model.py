"""A GGUF file as a Checkpoint: llama.cpp's names, fields and row order in canonical terms."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from inference.weights.checkpoint import Checkpoint, StoredTensor
from inference.weights.config import DecoderConfig, parse_config
from inference.weights.dequantize import decodable, decode
from inference.weights.errors import BrokenCheckpoint, UnsupportedCheckpoint
from inference.weights.gguf_file import GGUFFile
from inference.weights.gguf_tokenizer import GGUFTokenizer

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
ENCODING_SUFFIX = re.compile(r"[.-](I?Q\d\w*|F16|F32|BF16)$", re.IGNORECASE)


def read_gguf(path: Path) -> Checkpoint:
    """Raises WeightsError."""
    file = GGUFFile(path)
    parts = file.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedCheckpoint(path, f"one of {parts} parts; merge the parts into one file")
    config = _config(file)
    tokenizer = GGUFTokenizer(file.metadata, path)
    template = file.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        name=ENCODING_SUFFIX.sub("", path.stem),
        path=path,
        config=config,
        tensors=GGUFTensors(file, config),
        tokenizer_json=tokenizer.to_json(),
        chat_template=template if isinstance(template, str) else None,
        bos_token=tokenizer.token_of("bos"),
        eos_token=tokenizer.token_of("eos"),
        eos_token_ids=tokenizer.eos_token_ids,
    )


def _config(file: GGUFFile) -> DecoderConfig:
    """The file's fields as the config.json they were converted from, through the one parser of those."""
    metadata, path = file.metadata, file.path
    kind = metadata.get("general.architecture")
    if kind not in CLASSES:
        raise UnsupportedCheckpoint(path, f"GGUF architecture {kind!r} isn't supported (only {', '.join(CLASSES)})")
    if "token_embd.weight" not in file.tensors:
        raise BrokenCheckpoint(path, "tensor token_embd.weight is missing")

    def field(name: str) -> object:
        return metadata.get(f"{kind}.{name}")

    def required(name: str) -> object:
        value = field(name)
        if value is None:
            raise BrokenCheckpoint(path, f"{kind}.{name} is missing")
        return value

    heads, hidden = required("attention.head_count"), required("embedding_length")
    head_size = field("attention.key_length")
    if head_size is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        head_size = hidden // heads
    for name in ("rope.dimension_count", "attention.value_length"):
        if field(name) not in (None, head_size):
            raise UnsupportedCheckpoint(path, f"{kind}.{name} {field(name)} differs from the head size {head_size}")
    window = field("attention.sliding_window")
    raw: dict[str, object] = {
        "architectures": ["MistralForCausalLM" if kind == "llama" and window else CLASSES[kind]],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv"),
        "num_hidden_layers": required("block_count"),
        "head_dim": head_size,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "intermediate_size": required("feed_forward_length"),
        "max_position_embeddings": required("context_length"),
        "rms_norm_eps": required("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "rope_parameters": _rope_parameters(file, kind),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "sliding_window": window or None,
    }
    return parse_config(raw, path)


def _rope_parameters(file: GGUFFile, kind: str) -> Mapping[str, object]:
    """llama.cpp writes llama3 scaling as a tensor of one divisor per frequency."""
    if ROPE_FACTORS in file.tensors:
        info = file.tensors[ROPE_FACTORS]
        factors = torch.empty(info.shape)
        decode(torch.frombuffer(file.data(ROPE_FACTORS), dtype=torch.uint8), info.encoding, factors)
        return {"rope_type": "factors", "factors": factors.tolist()}
    scaling = file.metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling == "none":
        return {}
    return {"rope_type": scaling, "factor": file.metadata.get(f"{kind}.rope.scaling.factor")}


def canonical_name(name: str) -> str | None:
    """`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`; None for a tensor no decoder here has."""
    stem, _, kind = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    match stem.split("."):
        case ["blk", layer, inner] if inner in INNER:
            return f"model.layers.{layer}.{INNER[inner]}.{kind}"
    return None


class GGUFTensors:
    """A GGUF file's tensors under canonical names, in canonical row order."""

    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        self._file = file
        self._heads = {"q_proj": config.heads, "k_proj": config.kv_heads} if config.architecture in ("llama", "mistral") else {}
        self._names: dict[str, str] = {}
        for name, info in file.tensors.items():
            if name == ROPE_FACTORS:
                continue
            canonical = canonical_name(name)
            if canonical is None:
                raise UnsupportedCheckpoint(file.path, f"tensor {name} is of no supported architecture")
            if not decodable(info.encoding):
                raise UnsupportedCheckpoint(file.path, f"tensor {name} is stored as {info.encoding}, which isn't supported")
            self._names[canonical] = name

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._names:
            raise BrokenCheckpoint(self._file.path, f"tensor {name} is missing")
        return self._file.tensors[self._names[name]].shape

    def stored(self, name: str) -> StoredTensor:
        shape = self.shape(name)
        info = self._file.tensors[self._names[name]]
        return StoredTensor(name, shape, info.encoding, self._file.data(info.name), self._row_order(name, shape[0]))

    def read_into(self, name: str, out: Tensor) -> None:
        stored = self.stored(name)
        raw = torch.frombuffer(stored.data, dtype=torch.uint8)
        if stored.row_order is not None:
            raw = raw.view(stored.shape[0], -1).index_select(0, stored.row_order)
        decode(raw, stored.encoding, out)

    def _row_order(self, name: str, rows: int) -> Tensor | None:
        """llama.cpp stores q and k of Llama for pairs (2i, 2i + 1) of each head; here, as everywhere, the halves (i, i + size / 2) turn."""
        heads = self._heads.get(name.split(".")[-2])
        if heads is None:
            return None
        return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).reshape(-1)
