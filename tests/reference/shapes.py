"""The test models: their architecture in the vocabulary of llmtrain's [model] section, and their random parameters."""

import zlib
from dataclasses import dataclass

import numpy as np

VOCABULARY = 97


@dataclass(frozen=True)
class Shape:
    """Fields are keys of the deck's [model] section; the last blocks: terms of the loss, which tensors exist."""

    family: str = "gpt2"
    vocab_size: int = VOCABULARY
    d_model: int = 48
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 4
    head_dim: int = 12
    d_ff: int = 100
    max_seq_len: int = 40
    norm: str = "layernorm"
    norm_epsilon: float = 1e-5
    activation: str = "gelu_tanh"
    positions: str = "learned"
    rope_theta: float = 10000.0
    bias: bool = True
    tie_embeddings: bool = True
    pre_norm: bool = True
    sliding_window: int = 0
    # Written into a file only where they are not the default:
    sliding_window_layers: str = ""  # as in a deck: "0, 2"; all
    rope_scaling: str = "none"  # as in a deck: "linear, factor 2"
    partial_rotary_factor: float = 1.0
    sandwich_norm: bool = False
    zero_centered_norm: bool = False
    qk_norm: bool = False
    embedding_scale: float = 1.0
    query_pre_attn_scalar: float = 0.0  # head_dim
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    qk_norm_whole: bool = False  # the norms of qk_norm go over all heads together
    # Experts: layer i has them if i + 1 is a multiple of expert_every, but for dense_layers; others have d_ff.
    n_experts: int = 0
    experts_per_token: int = 0
    d_ff_expert: int = 0
    d_ff_shared: int = 0  # of the shared expert; 0: none
    shared_gate: bool = False  # a sigmoid on the shared expert's output
    norm_topk: bool = False  # the weights of a token's experts sum to 1
    router_score: str = "softmax"  # sigmoid
    routed_scale: float = 1.0
    dense_layers: str = ""  # as in a deck: "0, 2"
    expert_every: int = 1
    n_expert_groups: int = 1
    groups_per_token: int = 1
    expert_limit: float = 0.0  # swiglu_oai: its inputs are clamped
    attention_sinks: bool = False
    input_norm: bool = True  # with sandwich_norm; False: its norms alone
    parallel_residual: bool = False
    shared_norm: bool = False
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    rope_local_theta: float = 0.0  # of layers with the window, without scaling
    no_rope_layers: str = ""  # as in a deck: "0, 2"
    # Latent attention: head_dim is qk_nope_head_dim + qk_rope_head_dim.
    q_lora_rank: int = 0  # 0: one matrix
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    rope_interleave: bool = True  # its rotated dimensions are pairs of neighbours
    latent_norm_epsilon: float = 1e-6  # of its own norms, whatever the model's

    router_aux: float = 0.0  # [objective]: coefficients of the router's losses
    router_z_loss: float = 0.0

    qkv_bias: bool = True
    output_bias: bool = True  # of the attention's output projection
    mlp_bias: bool = True
    norm_bias: bool = True
    final_norm: bool = True

    @property
    def gated(self):
        return self.activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")

    @property
    def rotary_dim(self):
        return self.qk_rope_head_dim or int(self.head_dim * self.partial_rotary_factor)

    @property
    def dense(self):
        return [int(x) for x in self.dense_layers.split(",") if x]

    def has_experts(self, layer):
        return self.n_experts > 0 and layer not in self.dense and (layer + 1) % self.expert_every == 0

    @property
    def expert_layers(self):
        return [i for i in range(self.n_layers) if self.has_experts(i)]

    @property
    def experts_block(self):
        """The name of a layer's part with the experts."""
        return "block_sparse_moe" if self.family == "mixtral" else "mlp"

    @property
    def expert_matrices(self):
        """Names of an expert's gate, up and down projection."""
        return ("w1", "w3", "w2") if self.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")

    @property
    def router(self):
        return "router" if self.family == "gpt_oss" else "gate"

    @property
    def shared_expert(self):
        return "shared_experts" if self.family.startswith("deepseek") else "shared_expert"

    def has_rope(self, layer):
        return self.positions == "rope" and layer not in [int(x) for x in self.no_rope_layers.split(",") if x]

    @property
    def grouped(self):
        """Whether q, k and v are one matrix with its heads by groups."""
        return self.family in ("gpt_neox", "falcon")

    def window(self, layer):
        layers = [int(x) for x in self.sliding_window_layers.split(",") if x]
        return self.sliding_window if not layers or layer in layers else 0

    def rope_parameters(self):
        """{"rope_type": ..., parameters} from the deck's text."""
        kind, *items = [x.split() for x in self.rope_scaling.split(",")]
        values = {"true": True, "false": False}
        out = {"rope_type": kind[0]}
        for name, *rest in items:
            numbers = [values[x] if x in values else float(x) if "." in x else int(x) for x in rest]
            out[name] = numbers if name.endswith("_factor") and len(numbers) > 1 else numbers[0]
        return out


def gpt2(**changes):
    return Shape(**changes)


def llama(**changes):
    base = dict(family="llama", norm="rmsnorm", activation="swiglu", positions="rope", bias=False,
                tie_embeddings=False, qkv_bias=False, output_bias=False, mlp_bias=False, norm_bias=False)
    return Shape(**(base | changes))


def mistral(**changes):
    return llama(**dict(family="mistral") | changes)


def qwen2(**changes):
    return llama(**dict(family="qwen2", qkv_bias=True, rope_theta=1e6) | changes)


def qwen3(**changes):
    return llama(**dict(family="qwen3", qk_norm=True, rope_theta=1e6) | changes)


def gemma2(**changes):
    return llama(**dict(family="gemma2", sandwich_norm=True, zero_centered_norm=True, activation="geglu_tanh",
                        tie_embeddings=True, norm_epsilon=1e-4) | changes)


def phi3(**changes):
    return llama(**dict(family="phi3") | changes)


def starcoder2(**changes):
    return llama(**dict(family="starcoder2", norm="layernorm", activation="gelu_tanh", bias=True, qkv_bias=True,
                        output_bias=True, mlp_bias=True, norm_bias=True, tie_embeddings=True) | changes)


def granite(**changes):
    return llama(**dict(family="granite", tie_embeddings=True, query_pre_attn_scalar=16.0, embedding_scale=3.0,
                        residual_multiplier=0.4, logits_scaling=1.7, norm_epsilon=1e-4) | changes)


def smollm3(**changes):
    return llama(**dict(family="smollm3", tie_embeddings=True) | changes)


def olmo2(**changes):
    return llama(**dict(family="olmo2", sandwich_norm=True, input_norm=False, qk_norm=True, qk_norm_whole=True) | changes)


def gpt_neox(**changes):
    return llama(**dict(family="gpt_neox", norm="layernorm", activation="gelu", bias=True, qkv_bias=True,
                        output_bias=True, mlp_bias=True, norm_bias=True, parallel_residual=True,
                        partial_rotary_factor=0.5) | changes)


def falcon(**changes):
    return llama(**dict(family="falcon", norm="layernorm", activation="gelu", bias=True, norm_bias=True,
                        parallel_residual=True, shared_norm=True, tie_embeddings=True) | changes)


def gemma3(**changes):
    return gemma2(**dict(family="gemma3", qk_norm=True, rope_local_theta=100.0) | changes)


def mixtral(**changes):
    return llama(**dict(family="mixtral", norm_topk=True, rope_theta=1e6) | changes)


def olmoe(**changes):
    return llama(**dict(family="olmoe", qk_norm=True, qk_norm_whole=True) | changes)


def qwen2_moe(**changes):
    return llama(**dict(family="qwen2_moe", qkv_bias=True, shared_gate=True, rope_theta=1e6) | changes)


def qwen3_moe(**changes):
    return llama(**dict(family="qwen3_moe", qk_norm=True, norm_topk=True, rope_theta=1e6) | changes)


def deepseek_v2(**changes):
    return llama(**dict(family="deepseek_v2") | changes)


def deepseek_v3(**changes):
    return llama(**dict(family="deepseek_v3", norm_topk=True, router_score="sigmoid") | changes)


def gpt_oss(**changes):
    return llama(**dict(family="gpt_oss", activation="swiglu_oai", attention_sinks=True, expert_limit=7.0,
                        norm_topk=True, qkv_bias=True, output_bias=True, mlp_bias=True, rope_theta=150000.0) | changes)


def parameter_shapes(s: Shape):
    """Hugging Face name -> shape, matrices as (out, in): GPT-2's Conv1D matrices are transposed. GPT-OSS's experts stay
    as published: (expert, in, out), columns of gate and up in turn."""
    q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    out = {}

    def linear(name, rows, columns, bias):
        out[f"{name}.weight"] = (rows, columns)
        if bias:
            out[f"{name}.bias"] = (rows,)

    def norm(name):
        out[f"{name}.weight"] = (s.d_model,)
        if s.norm_bias:
            out[f"{name}.bias"] = (s.d_model,)

    def gated(name, width, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        linear(f"{name}.{gate}", width, s.d_model, s.mlp_bias)
        linear(f"{name}.{up}", width, s.d_model, s.mlp_bias)
        linear(f"{name}.{down}", s.d_model, width, s.mlp_bias)

    def experts(name):
        linear(f"{name}.{s.router}", s.n_experts, s.d_model, s.family == "gpt_oss")
        if s.router_score == "sigmoid":
            out[f"{name}.gate.e_score_correction_bias"] = (s.n_experts,)
        if s.family == "gpt_oss":
            out[f"{name}.experts.gate_up_proj"] = (s.n_experts, s.d_model, 2 * s.d_ff_expert)
            out[f"{name}.experts.gate_up_proj_bias"] = (s.n_experts, 2 * s.d_ff_expert)
            out[f"{name}.experts.down_proj"] = (s.n_experts, s.d_ff_expert, s.d_model)
            out[f"{name}.experts.down_proj_bias"] = (s.n_experts, s.d_model)
            return
        for e in range(s.n_experts):
            gated(f"{name}.experts.{e}", s.d_ff_expert, s.expert_matrices)
        if s.d_ff_shared:
            gated(f"{name}.{s.shared_expert}", s.d_ff_shared)
        if s.shared_gate:
            linear(f"{name}.shared_expert_gate", 1, s.d_model, False)

    def latent_attention(name):
        if s.q_lora_rank:
            linear(f"{name}.q_a_proj", s.q_lora_rank, s.d_model, s.qkv_bias)
            out[f"{name}.q_a_layernorm.weight"] = (s.q_lora_rank,)
            linear(f"{name}.q_b_proj", q, s.q_lora_rank, False)
        else:
            linear(f"{name}.q_proj", q, s.d_model, False)
        linear(f"{name}.kv_a_proj_with_mqa", s.kv_lora_rank + s.qk_rope_head_dim, s.d_model, s.qkv_bias)
        out[f"{name}.kv_a_layernorm.weight"] = (s.kv_lora_rank,)
        linear(f"{name}.kv_b_proj", s.n_heads * (s.qk_nope_head_dim + s.v_head_dim), s.kv_lora_rank, False)

    if s.grouped:
        neox = s.family == "gpt_neox"
        root, blocks, attention = ("gpt_neox", "layers", "attention") if neox else ("transformer", "h", "self_attention")
        norms = ["ln_attn", "ln_mlp"] if not neox and s.parallel_residual and not s.shared_norm else [
            "input_layernorm", "post_attention_layernorm"]
        out[f"{root}.{'embed_in' if neox else 'word_embeddings'}.weight"] = (s.vocab_size, s.d_model)
        for i in range(s.n_layers):
            block = f"{root}.{blocks}.{i}"
            for name in norms[:1] if s.shared_norm else norms:
                norm(f"{block}.{name}")
            linear(f"{block}.{attention}.query_key_value", q + 2 * kv, s.d_model, s.qkv_bias)
            linear(f"{block}.{attention}.dense", s.d_model, q, s.output_bias)
            linear(f"{block}.mlp.dense_h_to_4h", s.d_ff, s.d_model, s.mlp_bias)
            linear(f"{block}.mlp.dense_4h_to_h", s.d_model, s.d_ff, s.mlp_bias)
        norm(f"{root}.{'final_layer_norm' if neox else 'ln_f'}")
    elif s.family == "gpt2":
        out["transformer.wte.weight"] = (s.vocab_size, s.d_model)
        if s.positions == "learned":
            out["transformer.wpe.weight"] = (s.max_seq_len, s.d_model)
        for i in range(s.n_layers):
            block = f"transformer.h.{i}"
            norm(f"{block}.ln_1")
            linear(f"{block}.attn.c_attn", q + 2 * kv, s.d_model, s.qkv_bias)
            linear(f"{block}.attn.c_proj", s.d_model, q, s.output_bias)
            norm(f"{block}.ln_2")
            linear(f"{block}.mlp.c_fc", s.d_ff, s.d_model, s.mlp_bias)
            linear(f"{block}.mlp.c_proj", s.d_model, s.d_ff, s.mlp_bias)
        if s.final_norm:
            norm("transformer.ln_f")
    else:
        out["model.embed_tokens.weight"] = (s.vocab_size, s.d_model)
        for i in range(s.n_layers):
            block = f"model.layers.{i}"
            if s.input_norm:
                norm(f"{block}.input_layernorm")
            if s.family == "phi3":
                linear(f"{block}.self_attn.qkv_proj", q + 2 * kv, s.d_model, s.qkv_bias)
                linear(f"{block}.mlp.gate_up_proj", 2 * s.d_ff, s.d_model, s.mlp_bias)
            else:
                if s.kv_lora_rank:
                    latent_attention(f"{block}.self_attn")
                else:
                    linear(f"{block}.self_attn.q_proj", q, s.d_model, s.qkv_bias)
                    linear(f"{block}.self_attn.k_proj", kv, s.d_model, s.qkv_bias)
                    linear(f"{block}.self_attn.v_proj", kv, s.d_model, s.qkv_bias)
                if not s.has_experts(i) and s.gated:
                    linear(f"{block}.mlp.gate_proj", s.d_ff, s.d_model, s.mlp_bias)
                    linear(f"{block}.mlp.up_proj", s.d_ff, s.d_model, s.mlp_bias)
            if s.qk_norm:
                out[f"{block}.self_attn.q_norm.weight"] = (q if s.qk_norm_whole else s.head_dim,)
                out[f"{block}.self_attn.k_norm.weight"] = (kv if s.qk_norm_whole else s.head_dim,)
            if s.attention_sinks:
                out[f"{block}.self_attn.sinks"] = (s.n_heads,)
            linear(f"{block}.self_attn.o_proj", s.d_model, s.n_heads * (s.v_head_dim or s.head_dim), s.output_bias)
            norm(f"{block}.post_attention_layernorm")
            if s.sandwich_norm:
                if s.input_norm:
                    norm(f"{block}.pre_feedforward_layernorm")
                norm(f"{block}.post_feedforward_layernorm")
            if s.family == "starcoder2":
                linear(f"{block}.mlp.c_fc", s.d_ff, s.d_model, s.mlp_bias)
                linear(f"{block}.mlp.c_proj", s.d_model, s.d_ff, s.mlp_bias)
            elif s.has_experts(i):
                experts(f"{block}.{s.experts_block}")
            else:
                linear(f"{block}.mlp.down_proj", s.d_model, s.d_ff, s.mlp_bias)
        norm("model.norm")
    if not s.tie_embeddings:
        out["embed_out.weight" if s.family == "gpt_neox" else "lm_head.weight"] = (s.vocab_size, s.d_model)
    return out


def is_norm(name):
    return "norm" in name or ".ln_" in name


def is_trained(name):
    """DeepSeek-V3 moves the biases of its choices by another rule."""
    return not name.endswith("e_score_correction_bias")


def random_parameters(s: Shape, seed: int):
    """Every tensor random, nothing at a default that hides mistakes: norm weights spread around 1, biases not 0,
    attention scores of order 1. Values are multiples of 2^-12: exact in fp32, and the files compress."""
    out = {}
    for name, shape in parameter_shapes(s).items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if is_norm(name):
            value = rng.normal(1.0 if name.endswith("weight") and not s.zero_centered_norm else 0.0, 0.25, shape)
        elif name.endswith("sinks"):
            value = rng.normal(0.0, 1.0, shape)
        elif name.endswith("bias"):
            value = rng.normal(0.0, 0.2, shape)
        elif any(x in name for x in ("wte", "wpe", "embed_tokens", "embed_in", "word_embeddings")):
            value = rng.normal(0.0, 0.25, shape)
        else:
            value = rng.normal(0.0, 1.1 / np.sqrt(shape[1]), shape)
        out[name] = (np.round(value * 2.0**12) / 2.0**12).astype(np.float32)
    return out


def zero_gradients(s: Shape):
    """Ranges 'name:begin:end' of flat elements whose gradient is zero in exact arithmetic: a key bias adds the same
    number to all scores of a query, which softmax does not see. With rope the bias is rotated by the key's position,
    where it is rotated. Of one tensor the last range comes first, so that ranges can be cut out one after the other."""
    if s.family == "gpt_neox" and s.qkv_bias:
        d = s.head_dim
        return [f"gpt_neox.layers.{i}.attention.query_key_value.bias:{(3 * h + 1) * d + s.rotary_dim}:{(3 * h + 2) * d}"
                for i in range(s.n_layers) for h in reversed(range(s.n_heads)) if s.rotary_dim < d]
    if s.family != "gpt2" or s.positions != "learned" or not s.qkv_bias:
        return []
    q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    return [f"transformer.h.{i}.attn.c_attn.bias:{q}:{q + kv}" for i in range(s.n_layers)]
