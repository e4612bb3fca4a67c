"""The same test models through Hugging Face Transformers, with parameters handed in by name as (out, in) matrices."""

import torch
import transformers as hf
from torch.func import functional_call
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu", "swiglu": "silu",
                    "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh", "swiglu_oai": "silu"}


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
    if s.partial_rotary_factor != 1 or s.family == "gpt_neox":
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
    if s.family in NEWER:
        return build_newer(s, small, common, window, types)
    if s.family == "phi3":
        original = rope.pop("original_max_position_embeddings", s.max_seq_len)
        config = hf.Phi3Config(sliding_window=window, original_max_position_embeddings=original, **small, **common)
        return hf.Phi3ForCausalLM(config).eval()
    if s.n_experts:
        return build_experts(s, small | common, window, types)
    if s.sliding_window:
        config = hf.MistralConfig(sliding_window=s.sliding_window, head_dim=s.head_dim, **small, **common)
        return hf.MistralForCausalLM(config).eval()
    if s.qkv_bias and not s.output_bias:
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**small, **common)).eval()
    config = hf.LlamaConfig(head_dim=s.head_dim, attention_bias=s.qkv_bias, mlp_bias=s.mlp_bias, **small, **common)
    return hf.LlamaForCausalLM(config).eval()


NEWER = ("starcoder2", "granite", "smollm3", "olmo2", "gpt_neox", "falcon", "gemma3")


def build_newer(s, small, common, window, types):
    if s.family == "starcoder2":
        config = hf.Starcoder2Config(norm_epsilon=s.norm_epsilon, use_bias=s.qkv_bias, sliding_window=window,
                                     **small, **common)
        return hf.Starcoder2ForCausalLM(config).eval()
    if s.family == "granite":
        config = hf.GraniteConfig(attention_bias=s.qkv_bias, attention_multiplier=s.query_pre_attn_scalar**-0.5,
                                  embedding_multiplier=s.embedding_scale, logits_scaling=s.logits_scaling,
                                  residual_multiplier=s.residual_multiplier, **small, **common)
        return hf.GraniteForCausalLM(config).eval()
    if s.family == "smollm3":
        config = hf.SmolLM3Config(no_rope_layers=[int(s.has_rope(i)) for i in range(s.n_layers)], layer_types=types,
                                  use_sliding_window=bool(window), sliding_window=window, **small, **common)
        return hf.SmolLM3ForCausalLM(config).eval()
    if s.family == "olmo2":
        return hf.Olmo2ForCausalLM(hf.Olmo2Config(**small, **common)).eval()
    if s.family == "gpt_neox":
        config = hf.GPTNeoXConfig(layer_norm_eps=s.norm_epsilon, attention_bias=s.qkv_bias,
                                  use_parallel_residual=s.parallel_residual, **small, **common)
        return hf.GPTNeoXForCausalLM(config).eval()
    if s.family == "falcon":
        two_norms = s.parallel_residual and not s.shared_norm
        grouped = two_norms or s.n_kv_heads not in (1, s.n_heads)
        config = hf.FalconConfig(layer_norm_epsilon=s.norm_epsilon, ffn_hidden_size=s.d_ff, activation="gelu",
                                 num_kv_heads=s.n_kv_heads, new_decoder_architecture=grouped,
                                 multi_query=s.n_kv_heads == 1, parallel_attn=s.parallel_residual,
                                 num_ln_in_parallel_attn=(2 if two_norms else 1) if grouped else None, bias=s.qkv_bias,
                                 **small, **common)
        return hf.FalconForCausalLM(config).eval()
    small["hidden_activation"] = small.pop("hidden_act")
    small["rope_parameters"] = {"full_attention": small["rope_parameters"],
                                "sliding_attention": {"rope_type": "default", "rope_theta": s.rope_local_theta}}
    config = hf.Gemma3TextConfig(head_dim=s.head_dim, sliding_window=window, layer_types=types,
                                 query_pre_attn_scalar=int(s.query_pre_attn_scalar), **small, **common)
    return hf.Gemma3ForCausalLM(config).eval()


def build_experts(s, common, window, types):
    """A model with experts, which run one after the other."""
    common |= dict(num_experts_per_tok=s.experts_per_token, router_aux_loss_coef=s.router_aux,
                   experts_implementation="eager")
    if s.family == "mixtral":
        common |= dict(intermediate_size=s.d_ff_expert)
        config = hf.MixtralConfig(num_local_experts=s.n_experts, head_dim=s.head_dim, sliding_window=window, **common)
        return hf.MixtralForCausalLM(config).eval()
    if s.family == "gpt_oss":
        common |= dict(intermediate_size=s.d_ff_expert, num_local_experts=s.n_experts, swiglu_limit=s.expert_limit)
        config = hf.GptOssConfig(head_dim=s.head_dim, attention_bias=s.qkv_bias, sliding_window=window,
                                 layer_types=types, **common)
        return hf.GptOssForCausalLM(config).eval()
    if s.family.startswith("deepseek"):
        common |= dict(moe_intermediate_size=s.d_ff_expert, n_routed_experts=s.n_experts, norm_topk_prob=s.norm_topk,
                       n_shared_experts=s.d_ff_shared // s.d_ff_expert, first_k_dense_replace=len(s.dense),
                       n_group=s.n_expert_groups, topk_group=s.groups_per_token, routed_scaling_factor=s.routed_scale,
                       q_lora_rank=s.q_lora_rank or None, kv_lora_rank=s.kv_lora_rank, v_head_dim=s.v_head_dim,
                       qk_nope_head_dim=s.qk_nope_head_dim, qk_rope_head_dim=s.qk_rope_head_dim,
                       attention_bias=s.qkv_bias)
        if s.family == "deepseek_v3":
            return hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(rope_interleave=s.rope_interleave, **common)).eval()
        method = "greedy" if s.n_expert_groups == 1 else "group_limited_greedy"
        return hf.DeepseekV2ForCausalLM(hf.DeepseekV2Config(topk_method=method, **common)).eval()
    common |= dict(num_experts=s.n_experts, norm_topk_prob=s.norm_topk)
    if s.family == "olmoe":
        common |= dict(intermediate_size=s.d_ff_expert)
        return hf.OlmoeForCausalLM(hf.OlmoeConfig(attention_bias=s.qkv_bias, **common)).eval()
    common |= dict(moe_intermediate_size=s.d_ff_expert, decoder_sparse_step=s.expert_every,
                   mlp_only_layers=s.dense, use_sliding_window=bool(window),
                   sliding_window=window)
    if s.family == "qwen2_moe":
        config = hf.Qwen2MoeConfig(shared_expert_intermediate_size=s.d_ff_shared, qkv_bias=s.qkv_bias,
                                   layer_types=types, **common)
        return hf.Qwen2MoeForCausalLM(config).eval()
    config = hf.Qwen3MoeConfig(head_dim=s.head_dim, attention_bias=s.qkv_bias, **common)
    return hf.Qwen3MoeForCausalLM(config).eval()


def fused_experts(s, parameters):
    """The experts of a layer in two tensors, as Transformers has them in memory: gate_up_proj [E, 2 F, C], down_proj
    [E, C, F]. Gradients reach the matrices of the experts."""
    out = {}
    if s.family == "gpt_oss":  # published so
        return out
    for layer in s.expert_layers:
        name = f"model.layers.{layer}.{s.experts_block}"
        gate, up, down = (torch.stack([torch.as_tensor(parameters[f"{name}.experts.{e}.{m}.weight"])
                                       for e in range(s.n_experts)]) for m in s.expert_matrices)
        out[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), 1)
        out[f"model.layers.{layer}.mlp.experts.down_proj"] = down
    return out


def parameter_map(s, parameters):
    """Our names and orientation -> what the Transformers model wants."""
    out = fused_experts(s, parameters)
    for name, value in parameters.items():
        if ".experts." in name and s.family != "gpt_oss":
            continue
        name = name.replace(".block_sparse_moe.", ".mlp.").replace("embed_out.", "lm_head.")
        if s.family == "gpt2" and (".c_" in name) and name.endswith("weight"):
            value = value.T  # Conv1D stores (in, out)
        if not s.pre_norm:
            name = name.replace(".wte.", ".tokens_embed.").replace(".wpe.", ".positions_embed.")
        out[name] = value
    return out


def check_complete(model, s, parameters):
    """Every parameter of the Transformers model is handed in, and nothing else."""
    biases = [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
    wanted = {n: tuple(p.shape) for n, p in [*model.named_parameters(), *biases]}
    given = {n: tuple(p.shape) for n, p in parameter_map(s, parameters).items()}
    if wanted != given:
        raise SystemExit(f"parameters differ: {set(wanted.items()) ^ set(given.items())}")


def forget_lengths(model):
    """Dynamic frequencies are kept from longer sequences that came before: start anew."""
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    if hasattr(rotary, "inv_freq"):
        rotary.max_seq_len_cached = rotary.original_max_seq_len
        rotary.inv_freq = rotary.original_inv_freq.clone()


def decode(model, s, parameters, documents, router=None):
    """Logits [N, V] of documents, each run alone (equal lengths: as one batch). The list `router` is appended with the
    router's logits [tokens, E] of every layer with experts."""
    mapped = parameter_map(s, parameters)
    if len({len(d) for d in documents}) == 1:
        forget_lengths(model)
        options = dict(use_cache=False) if s.pre_norm else {}
        if s.n_experts:
            options["output_router_logits"] = True
        result = functional_call(model, mapped, (torch.stack(documents),), options)
        if s.n_experts and router is not None:
            router += result.router_logits
        return result.logits.reshape(-1, s.vocab_size)
    return torch.cat([decode(model, s, parameters, [d], router) for d in documents])


def balance_loss(s, router):
    """Transformers' load-balancing loss of all tokens and layers together."""
    return load_balancing_loss_func(tuple(router), s.n_experts, s.experts_per_token)
