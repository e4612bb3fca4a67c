"""The same test models through Hugging Face Transformers, with parameters handed in by name as (out, in) matrices."""

import torch
import transformers as hf
from torch.func import functional_call

ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu", "swiglu": "silu",
                    "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}


def build(s):
    """The Transformers model of shape s in evaluation mode, or None where Transformers has none."""
    act = ACTIVATION_NAMES[s.activation]
    common = dict(vocab_size=s.vocab_size, tie_word_embeddings=s.tie_embeddings, attn_implementation="eager",
                  bos_token_id=None, eos_token_id=None)
    if s.family == "gpt2":
        if s.positions != "learned" or not s.mlp_bias or s.n_kv_heads != s.n_heads:
            return None
        small = dict(n_embd=s.d_model, n_layer=s.n_layers, n_head=s.n_heads, n_positions=s.max_seq_len,
                     layer_norm_epsilon=s.norm_epsilon, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        if s.pre_norm:
            return hf.GPT2LMHeadModel(hf.GPT2Config(activation_function=act, n_inner=s.d_ff, **small, **common)).eval()
        # GPT-1: post-norm, no final norm, d_ff = 4 d_model; its "gelu" is the tanh approximation.
        if s.d_ff != 4 * s.d_model or s.activation != "gelu_tanh":
            return None
        del common["attn_implementation"]
        return hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(afn="gelu", **small, **common)).eval()
    rope = {"rope_type": "default"} if s.rope_scaling == "none" else s.rope_parameters()
    rope |= {"rope_theta": s.rope_theta}
    if s.partial_rotary_factor != 1:
        rope |= {"partial_rotary_factor": s.partial_rotary_factor}
    small = dict(hidden_size=s.d_model, intermediate_size=s.d_ff, num_hidden_layers=s.n_layers,
                 num_attention_heads=s.n_heads, num_key_value_heads=s.n_kv_heads, hidden_act=act,
                 max_position_embeddings=s.max_seq_len, rms_norm_eps=s.norm_epsilon,
                 rope_parameters=rope, pad_token_id=None)
    types = ["sliding_attention" if s.window(i) else "full_attention" for i in range(s.n_layers)]
    window = s.sliding_window or None
    if s.family in ("qwen2", "qwen3"):
        small |= dict(use_sliding_window=bool(window), sliding_window=window, layer_types=types)
        if s.family == "qwen2":
            return hf.Qwen2ForCausalLM(hf.Qwen2Config(**small, **common)).eval()
        config = hf.Qwen3Config(head_dim=s.head_dim, attention_bias=s.qkv_bias, **small, **common)
        return hf.Qwen3ForCausalLM(config).eval()
    if s.family == "gemma2":
        del small["hidden_act"]
        config = hf.Gemma2Config(head_dim=s.head_dim, hidden_activation=act, sliding_window=window, layer_types=types,
                                 query_pre_attn_scalar=int(s.query_pre_attn_scalar),
                                 attn_logit_softcapping=s.attention_softcap, final_logit_softcapping=s.final_softcap,
                                 **small, **common)
        return hf.Gemma2ForCausalLM(config).eval()
    if s.family == "phi3":
        original = rope.pop("original_max_position_embeddings", s.max_seq_len)
        config = hf.Phi3Config(sliding_window=window, original_max_position_embeddings=original, **small, **common)
        return hf.Phi3ForCausalLM(config).eval()
    if s.sliding_window:
        config = hf.MistralConfig(sliding_window=s.sliding_window, head_dim=s.head_dim, **small, **common)
        return hf.MistralForCausalLM(config).eval()
    if s.qkv_bias and not s.output_bias:
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**small, **common)).eval()
    config = hf.LlamaConfig(head_dim=s.head_dim, attention_bias=s.qkv_bias, mlp_bias=s.mlp_bias, **small, **common)
    return hf.LlamaForCausalLM(config).eval()


def parameter_map(s, parameters):
    """Our names and orientation -> what the Transformers model wants."""
    out = {}
    for name, value in parameters.items():
        if s.family == "gpt2" and (".c_" in name) and name.endswith("weight"):
            value = value.T  # Conv1D stores (in, out)
        if not s.pre_norm:
            name = name.replace(".wte.", ".tokens_embed.").replace(".wpe.", ".positions_embed.")
        out[name] = value
    return out


def check_complete(model, s, parameters):
    """Every parameter of the Transformers model is handed in, and nothing else."""
    wanted = {n: tuple(p.shape) for n, p in model.named_parameters()}
    given = {n: tuple(p.shape) for n, p in parameter_map(s, parameters).items()}
    if wanted != given:
        raise SystemExit(f"parameters differ: {set(wanted.items()) ^ set(given.items())}")


def forget_lengths(model):
    """Dynamic frequencies are kept from longer sequences that came before: start anew."""
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    if rotary is not None:
        rotary.max_seq_len_cached = rotary.original_max_seq_len
        rotary.inv_freq = rotary.original_inv_freq.clone()


def decode(model, s, parameters, documents):
    """Logits [N, V] of documents, each run alone (equal lengths: as one batch)."""
    mapped = parameter_map(s, parameters)
    if len({len(d) for d in documents}) == 1:
        forget_lengths(model)
        logits = functional_call(model, mapped, (torch.stack(documents),), dict(use_cache=False)
                                 if s.pre_norm else {}).logits
        return logits.reshape(-1, s.vocab_size)
    return torch.cat([decode(model, s, parameters, [d]) for d in documents])
