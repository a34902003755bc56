"""The shape of a decoder, from the fields of a Hugging Face config.json."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.weights.errors import BrokenCheckpoint, UnsupportedCheckpoint

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

MOST = 2**31 - 1
MOST_LAYERS = 4096  # a damaged file must not ask for memory without end


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every position divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Each frequency divided by its own factor, as GGUF files list them."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | FactorScaling | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder of attention and gated feed-forward layers."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context_length: int
    norm_eps: float
    rope_base: float
    rope_scaling: RopeScaling
    tie_embeddings: bool
    attention_bias: bool = False
    """Biases on q, k, v and the output projection (Qwen2's biases on q, k, v alone are part of its architecture)."""
    mlp_bias: bool = False
    windows: tuple[int | None, ...] = ()
    """Per layer: its sliding window in tokens, or None for full attention."""

    def __post_init__(self) -> None:
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.layers)


class Fields:
    """Typed access to a configuration's fields; every failure names file and field."""

    def __init__(self, raw: Mapping[str, object], path: Path) -> None:
        self.raw = raw
        self.path = path

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        value = self.raw.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BrokenCheckpoint(self.path, f"{name} must be an integer from {least} to {most}, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.raw.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise BrokenCheckpoint(self.path, f"{name} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BrokenCheckpoint(self.path, f"{name} must be true or false, not {value!r}")
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self.raw.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise BrokenCheckpoint(self.path, f"{name} must be an object, not {value!r}")
        return value


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file. Raises BrokenCheckpoint."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BrokenCheckpoint(path, "the file is missing") from None
    except (OSError, ValueError) as error:
        raise BrokenCheckpoint(path, f"not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise BrokenCheckpoint(path, "must hold a JSON object")
    return value


def parse_config(raw: Mapping[str, object], path: Path) -> DecoderConfig:
    """Raises BrokenCheckpoint for missing or contradicting fields, UnsupportedCheckpoint for what isn't offered."""
    fields = Fields(raw, path)
    architecture = _architecture(fields)
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedCheckpoint(path, f"hidden_act {activation!r} isn't supported (only silu)")
    if raw.get("quantization_config") is not None:
        raise UnsupportedCheckpoint(path, "quantised safetensors aren't supported; use a GGUF file or full-precision weights")
    hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    kv_heads = fields.integer("num_key_value_heads", heads)
    head_size = fields.integer("head_dim", hidden_size // heads)
    if heads % kv_heads:
        raise BrokenCheckpoint(path, f"num_attention_heads {heads} isn't a multiple of num_key_value_heads {kv_heads}")
    if head_size % 2:
        raise UnsupportedCheckpoint(path, f"odd head size {head_size}")
    rope_base, scaling = _rope(fields, head_size)
    return DecoderConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        context_length=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_base=rope_base,
        rope_scaling=scaling,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=architecture != "qwen2" and fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        windows=_windows(fields, architecture, layers),
    )


def _architecture(fields: Fields) -> str:
    declared = fields.raw.get("architectures")
    if not isinstance(declared, list) or not declared:
        raise BrokenCheckpoint(fields.path, "architectures must name a model class")
    architecture = ARCHITECTURES.get(str(declared[0]))
    if architecture is None:
        raise UnsupportedCheckpoint(fields.path, f"architecture {declared[0]!r} isn't supported (only {', '.join(ARCHITECTURES)})")
    return architecture


def _rope(fields: Fields, head_size: int) -> tuple[float, RopeScaling]:
    """Both spellings: rope_parameters (with rope_theta in it), and rope_theta beside rope_scaling."""
    parameters = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    inner = Fields(parameters, fields.path)
    base = inner.number("rope_theta", fields.number("rope_theta", 10_000.0))
    partial = parameters.get("partial_rotary_factor", fields.raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedCheckpoint(fields.path, f"partial_rotary_factor {partial!r} isn't supported (only 1)")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    match kind:
        case "default":
            return base, None
        case "linear":
            return base, LinearScaling(inner.number("factor"))
        case "llama3":
            scaling = Llama3Scaling(
                factor=inner.number("factor"),
                low_freq_factor=inner.number("low_freq_factor"),
                high_freq_factor=inner.number("high_freq_factor"),
                original_context=inner.integer("original_max_position_embeddings"),
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise BrokenCheckpoint(fields.path, "high_freq_factor must be greater than low_freq_factor")
            return base, scaling
        case "factors":
            factors = parameters.get("factors")
            if not isinstance(factors, list | tuple) or len(factors) != head_size // 2:
                raise BrokenCheckpoint(fields.path, f"rope needs {head_size // 2} frequency factors")
            return base, FactorScaling(tuple(float(factor) for factor in factors))
        case _:
            raise UnsupportedCheckpoint(fields.path, f"rope scaling {kind!r} isn't supported (only default, linear, llama3)")


def _windows(fields: Fields, architecture: str, layers: int) -> tuple[int | None, ...]:
    """Mistral slides wherever a window is given; Qwen only if use_sliding_window says so, in the layers past max_window_layers."""
    qwen = architecture.startswith("qwen")
    slides = architecture == "mistral" or (qwen and fields.flag("use_sliding_window", False))
    if not slides or fields.raw.get("sliding_window") is None:
        return (None,) * layers
    window = fields.integer("sliding_window")
    types = fields.raw.get("layer_types")
    if types is None or not qwen:
        first = fields.integer("max_window_layers", layers, least=0) if qwen else 0
        return tuple(window if layer >= first else None for layer in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        raise BrokenCheckpoint(fields.path, f"layer_types must list {layers} layers")
    unknown = sorted({str(kind) for kind in types} - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedCheckpoint(fields.path, f"layer type {unknown[0]!r} isn't supported")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
