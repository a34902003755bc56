"""Small GGUF files, written with the package's own writer and quantisers."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants
from transformers import PreTrainedModel

from tests.inference.tiny_models import VOCAB_SIZE

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BYTE_LETTERS = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
"""The 256 letters that stand for bytes in a byte-level vocabulary."""


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows: within a head, first half and second half take turns."""
    by_half = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(by_half.swapaxes(1, 2)).reshape(rows.shape)


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[inner]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str], merges: list[str], *, pre: str | None = "smollm", **ids: int) -> None:
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 4 if token.startswith("<user") else 1 for token in tokens])
    writer.add_token_merges(merges)
    for kind, token_id in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{kind}_token_id", token_id)


def tokens_of_size(size: int) -> list[str]:
    """A vocabulary of this many tokens: three special ones, bytes, one merge at the end."""
    return ["<|end|>", "<|begin|>", "<|turn|>", *BYTE_LETTERS[: size - 4], "ab"]


def write_model(path: Path, model: PreTrainedModel, encoding: str = "F32", *, architecture: str = "llama", **extra: Any) -> None:
    """A transformers model as llama.cpp's converter would write it; one-dimensional tensors stay float32."""
    config = model.config
    kind = GGMLQuantizationType[encoding]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(config.head_dim if getattr(config, "head_dim", None) else config.hidden_size // config.num_attention_heads)
    for key, value in extra.items():
        getattr(writer, f"add_{key}")(value)
    add_tokenizer(writer, tokens_of_size(VOCAB_SIZE), ["a b"], bos=1, eos=0, eot=2)
    tied = config.tie_word_embeddings
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if architecture == "llama" else {}
    for name, parameter in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        values = parameter.numpy()
        if (count := heads.get(name.split(".")[-2])) is not None:
            values = interleave(values, count)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            raw = quants.quantize(values, kind)
            writer.add_tensor(gguf_name(name), raw, raw_dtype=kind)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
