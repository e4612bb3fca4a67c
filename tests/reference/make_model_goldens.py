"""Writes models/<case>.h5: what PyTorch makes of tiny random models. See README.md for the layout.

    python make_model_goldens.py [CASE...]
"""

import dataclasses
import math
import pathlib
import sys
from typing import NamedTuple

import h5py
import numpy as np
import torch
import torch.nn.functional as F
import transformers

import decoder
import hugging_face
from shapes import (VOCABULARY, Shape, deepseek_v2, deepseek_v3, falcon, gemma2, gemma3, gpt2, gpt_neox, gpt_oss,
                    granite, is_trained, llama, mistral, mixtral, olmo2, olmoe, parameter_shapes, phi3, qwen2,
                    qwen2_moe, qwen3, qwen3_moe, random_parameters, smollm3, starcoder2, zero_gradients)

LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, MAX_NORM, STEPS = 1e-3, (0.9, 0.999), 1e-8, 0.1, 1.0, 10
IGNORE = -100
LOSSES_AGREE = 2e-5  # fp32 against fp64, over ten steps: no element sits where Adam magnifies rounding

ROUTER_MARGIN = 1e-4  # relative, of a token's worst expert to the best one left out: rounding decides nothing

GRADIENT_BITS = 18  # significant bits kept in the files

# Written where they are not the default, so that older files stay as they are.
OPTIONAL = ("sliding_window_layers", "rope_scaling", "partial_rotary_factor", "sandwich_norm", "zero_centered_norm",
            "qk_norm", "embedding_scale", "query_pre_attn_scalar", "attention_softcap", "final_softcap",
            "qk_norm_whole", "n_experts", "experts_per_token", "d_ff_expert", "d_ff_shared", "shared_gate", "norm_topk",
            "router_score", "routed_scale", "dense_layers", "expert_every", "n_expert_groups", "groups_per_token",
            "router_aux", "router_z_loss", "expert_limit", "attention_sinks", "q_lora_rank", "kv_lora_rank",
            "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_interleave", "latent_norm_epsilon",
            "input_norm", "parallel_residual", "shared_norm", "residual_multiplier", "logits_scaling",
            "rope_local_theta", "no_rope_layers")
# Of these, the ones that have no mistake of their own in controls(): sizes, which layers, losses.
NO_MISTAKE = ("sandwich_norm", "n_experts", "d_ff_expert", "dense_layers", "expert_every", "router_aux",
              "router_z_loss", "n_expert_groups", "groups_per_token", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
              "qk_rope_head_dim", "v_head_dim", "rope_interleave", "latent_norm_epsilon", "input_norm", "shared_norm")

no_bias = dict(bias=False, qkv_bias=False, output_bias=False, mlp_bias=False, norm_bias=False)


def heads(n, kv, size, **changes):
    return dict(n_heads=n, n_kv_heads=kv, head_dim=size, d_ff=52) | changes


g36 = heads(3, 3, 12, d_model=36, max_seq_len=32)  # the small GPT-2
l30 = heads(3, 3, 10, d_model=30)                  # the small Llamas
l36 = heads(6, 2, 6, d_model=36)
tiny = heads(3, 1, 12, d_model=24, d_ff=40)  # the other families
llama3 = "llama3, factor 8, original_max_position_embeddings 32, low_freq_factor 1, high_freq_factor 4"
yarn = "yarn, factor 4, original_max_position_embeddings 32"
yarn_mscale = yarn + ", beta_fast 3, beta_slow 0.5, mscale 1.2, mscale_all_dim 0.7, truncate false"
longrope = "longrope, original_max_position_embeddings 16, short_factor 1.0 1.1 1.2 1.4, long_factor 1.5 2.5 4.0 9.5"
gemma = dict(n_layers=3, query_pre_attn_scalar=20.0, attention_softcap=2.0, final_softcap=3.0, sliding_window=7,
             sliding_window_layers="0, 2", embedding_scale=24.0**0.5)
gemma_3 = dict(n_layers=3, query_pre_attn_scalar=20.0, sliding_window=7, sliding_window_layers="0, 1",
               embedding_scale=24.0**0.5)
even = heads(4, 2, 6, d_model=24, d_ff=40)
longrope_3 = "longrope, original_max_position_embeddings 16, short_factor 1.0 1.1 1.4, long_factor 1.5 2.5 9.5"
routed = dict(n_experts=4, experts_per_token=2, d_ff_expert=20, d_ff=20)
balanced = dict(router_aux=0.02)
latent = dict(d_model=24, n_heads=3, n_kv_heads=3, head_dim=12, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4,
              v_head_dim=6, norm_epsilon=1e-4, n_experts=6, experts_per_token=2, d_ff_expert=12, d_ff=40)
even = dict(n_heads=4, n_kv_heads=4, n_experts=4)

# name: (shape, lengths of the documents, packed); unpacked documents have a target everywhere
CASES = {
    "gpt2": (gpt2(), [27, 27], False),
    "gpt2_untied": (gpt2(**heads(3, 3, 16), tie_embeddings=False), [24, 24], False),
    "gpt2_no_bias": (gpt2(**g36, **no_bias), [31, 31], False),
    "gpt2_relu": (gpt2(**g36, activation="relu"), [25, 25], False),
    "gpt2_silu": (gpt2(**g36, activation="silu"), [25, 25], False),
    "gpt2_gelu": (gpt2(**g36, activation="gelu", norm_epsilon=1e-3), [25, 25], False),
    "gpt2_post_norm": (gpt2(**g36 | dict(d_model=30, head_dim=10, d_ff=120), pre_norm=False, final_norm=False), [25, 25], False),
    "gpt2_rope": (gpt2(**g36, positions="rope", rope_theta=100.0), [29, 29], False),
    "gpt2_packed": (gpt2(**heads(6, 6, 6, d_model=36)), [17, 40, 9], True),
    "llama": (llama(**l36 | dict(n_kv_heads=6), n_layers=3, norm_epsilon=1e-4), [24, 24, 24], False),
    "llama_gqa": (llama(n_kv_heads=2, d_ff=76), [27, 27], False),
    "llama_mqa": (llama(**l30 | dict(n_kv_heads=1)), [30, 30], False),
    "llama_tied": (llama(**l30, tie_embeddings=True), [27, 27], False),
    "llama_window": (llama(**l30, sliding_window=7), [38, 38], False),
    "llama_head_dim": (llama(**heads(4, 2, 10, d_model=36)), [28, 28], False),
    "llama_geglu": (llama(**l30, activation="geglu"), [25, 25], False),
    "llama_attention_bias": (llama(**l30, qkv_bias=True, output_bias=True), [25, 25], False),
    "llama_qkv_bias": (llama(**l36, qkv_bias=True, rope_theta=1e6), [25, 25], False),
    "llama_packed": (llama(**l36 | dict(n_kv_heads=3)), [11, 37, 22], True),
    "llama_window_packed": (llama(**l36, sliding_window=5), [3, 40, 14, 5], True),
    "llama_linear": (llama(**tiny, rope_scaling="linear, factor 2.5"), [26, 26], False),
    "llama_dynamic": (llama(**tiny, rope_scaling="dynamic, factor 3", max_seq_len=16), [37, 37], False),
    "llama_dynamic_packed": (llama(**tiny, rope_scaling="dynamic, factor 3", max_seq_len=16), [16, 39, 7, 20], True),
    "llama_llama3": (llama(**tiny, rope_scaling=llama3, tie_embeddings=True), [38, 38], False),
    "llama_yarn": (llama(**tiny, rope_scaling=yarn, max_seq_len=128), [38, 38], False),
    "llama_longrope": (llama(**tiny | dict(head_dim=8), rope_scaling=longrope + ", factor 6, attention_factor 1.3"),
                       [24, 24], False),
    "mistral": (mistral(**tiny, sliding_window=9), [30, 30], False),
    "qwen2": (qwen2(**tiny | dict(head_dim=8), tie_embeddings=True), [26, 26], False),
    "qwen2_yarn": (qwen2(**tiny | dict(head_dim=8), rope_scaling=yarn_mscale, rope_theta=1e4), [38, 38], False),
    "qwen2_window_packed": (qwen2(**tiny | dict(head_dim=8), n_layers=3, sliding_window=6, sliding_window_layers="1, 2"),
                            [4, 33, 17], True),
    "qwen3": (qwen3(**tiny), [27, 27], False),
    "qwen3_packed": (qwen3(**heads(4, 2, 10, d_model=24, d_ff=40), tie_embeddings=True, sliding_window=8), [9, 31, 15],
                     True),
    "gemma2": (gemma2(**tiny, **gemma), [27, 27], False),
    "gemma2_packed": (gemma2(**heads(4, 2, 6, d_model=24, d_ff=40), **gemma), [5, 33, 14], True),
    "phi3": (phi3(**tiny | dict(head_dim=8), sliding_window=9, partial_rotary_factor=0.75), [28, 28], False),
    "phi3_longrope": (phi3(**heads(2, 1, 10, d_model=20, d_ff=40), max_seq_len=64, partial_rotary_factor=0.8,
                           rope_scaling=longrope), [13, 30, 16], True),
    "mixtral": (mixtral(**tiny | routed), [27, 27], False),
    "mixtral_packed": (mixtral(**tiny | routed | dict(n_experts=5), **balanced, sliding_window=9), [7, 33, 18], True),
    "olmoe": (olmoe(**heads(3, 3, 8, d_model=24) | routed), [26, 26], False),
    "olmoe_packed": (olmoe(**heads(4, 2, 6, d_model=24) | routed | dict(n_experts=6, experts_per_token=3), **balanced,
                           router_z_loss=0.01), [12, 31, 5], True),
    "qwen2_moe": (qwen2_moe(**tiny | routed | dict(head_dim=8), d_ff_shared=28), [27, 27], False),
    "qwen2_moe_even": (qwen2_moe(**heads(4, 2, 6, d_model=24, d_ff=20) | routed, d_ff_shared=16, router_aux=0.02), [23, 23],
                       False),  # whose matrices can be split
    "qwen2_moe_packed": (qwen2_moe(**tiny | routed | dict(head_dim=8, d_ff=40), d_ff_shared=16, norm_topk=True,
                                   n_layers=4, expert_every=2, sliding_window=8, sliding_window_layers="0, 2",
                                   **balanced), [17, 29, 4], True),
    "qwen3_moe": (qwen3_moe(**tiny | routed | dict(n_experts=6)), [27, 27], False),
    "qwen3_moe_packed": (qwen3_moe(**heads(4, 2, 10, d_model=24) | routed | dict(experts_per_token=3, d_ff=40),
                                   n_layers=3, dense_layers="0", norm_topk=False, tie_embeddings=True,
                                   sliding_window=8, **balanced), [9, 31, 15], True),
    "qwen3_moe_between": (qwen3_moe(**heads(4, 2, 6, d_model=24) | routed | dict(n_experts=5, d_ff=28), n_layers=4,
                                    dense_layers="1, 2", **balanced), [25, 25], False),
    # More experts than tokens: some have none, and only their decay moves them.
    "qwen3_moe_idle": (qwen3_moe(**tiny | routed | dict(n_experts=8, experts_per_token=1, d_ff_expert=8),
                                 norm_topk=False, **balanced), [3, 4], True),
    "deepseek_v2": (deepseek_v2(**latent, d_ff_shared=24, dense_layers="0", n_layers=3, rope_scaling=yarn_mscale),
                    [27, 27], False),
    "deepseek_v2_packed": (deepseek_v2(**latent | dict(experts_per_token=3), d_ff_shared=12, q_lora_rank=14,
                                       n_expert_groups=3, groups_per_token=2, routed_scale=1.5), [7, 33, 18], True),
    "deepseek_v3": (deepseek_v3(**latent, d_ff_shared=12, routed_scale=2.5), [27, 27], False),
    "deepseek_v3_packed": (deepseek_v3(**latent | dict(n_experts=8, experts_per_token=3), d_ff_shared=12, n_layers=3,
                                       q_lora_rank=14, dense_layers="0", n_expert_groups=4, groups_per_token=2,
                                       routed_scale=1.5, rope_scaling=yarn_mscale), [5, 31, 14], True),
    # Their matrices can be split.
    "deepseek_v2_even": (deepseek_v2(**latent | even, d_ff_shared=12, dense_layers="0"), [23, 23], False),
    "deepseek_v3_even": (deepseek_v3(**latent | even, d_ff_shared=12, q_lora_rank=14), [6, 27, 11], True),
    "gpt_oss": (gpt_oss(**heads(3, 1, 8, d_model=24) | routed, expert_limit=1.5, sliding_window=7,
                        sliding_window_layers="0"), [27, 27], False),
    "gpt_oss_packed": (gpt_oss(**heads(4, 2, 10, d_model=24) | routed | dict(n_experts=5, experts_per_token=3),
                               expert_limit=0.8, sliding_window=5, sliding_window_layers="0", **balanced,
                               rope_scaling=yarn + ", truncate false"), [6, 33, 15], True),
    "gpt_oss_even": (gpt_oss(**heads(4, 2, 6, d_model=24) | routed, expert_limit=1.2, sliding_window=6,
                             sliding_window_layers="0", router_aux=0.02), [23, 23], False),  # can be split
    "starcoder2": (starcoder2(**even, sliding_window=9), [28, 28], False),
    "granite": (granite(**even), [26, 26], False),
    "granite_packed": (granite(**even, tie_embeddings=False, qkv_bias=True, output_bias=True), [7, 33, 15], True),
    "smollm3": (smollm3(**even, n_layers=3, no_rope_layers="1", rope_theta=500.0), [27, 27], False),
    "smollm3_packed": (smollm3(**even, n_layers=3, no_rope_layers="0, 2", sliding_window=8, sliding_window_layers="0, 2",
                               tie_embeddings=False), [9, 31, 15], True),
    "olmo2": (olmo2(**even), [26, 26], False),
    "olmo2_packed": (olmo2(**heads(3, 3, 8, d_model=24, d_ff=40)), [12, 31, 5], True),
    "gpt_neox": (gpt_neox(**heads(3, 3, 8, d_model=24, d_ff=40)), [27, 27], False),
    "gpt_neox_packed": (gpt_neox(**heads(4, 4, 6, d_model=24, d_ff=40), partial_rotary_factor=1.0,
                                 parallel_residual=False, tie_embeddings=True), [9, 31, 15], True),
    "falcon": (falcon(**heads(3, 1, 8, d_model=24, d_ff=40)), [27, 27], False),
    "falcon_packed": (falcon(**even, shared_norm=False), [9, 31, 15], True),
    "falcon_biases": (falcon(**even, qkv_bias=True, output_bias=True, mlp_bias=True, tie_embeddings=False), [25, 25],
                      False),
    "gemma3": (gemma3(**tiny, **gemma_3, rope_scaling="linear, factor 2.5"), [27, 27], False),
    "gemma3_packed": (gemma3(**heads(4, 2, 6, d_model=24, d_ff=40), **gemma_3), [5, 33, 14], True),
    "phi4": (phi3(**heads(4, 2, 8, d_model=32, d_ff=40), max_seq_len=64, partial_rotary_factor=0.75,
                  tie_embeddings=True, rope_scaling=longrope_3), [26, 26], False),
}


def random_batch(rng, lengths, packed):
    """Documents of ids and targets, both int64; about a tenth is not trained on when packed, and never what would
    come after a document."""
    ids, targets = [], []
    for n in lengths:
        tokens = rng.integers(0, VOCABULARY, n + 1)
        target = tokens[1:].copy()
        if packed:
            target[rng.random(n) < 0.1] = IGNORE
            target[: n // 5] = IGNORE  # a prompt
            target[-1] = IGNORE
        ids.append(torch.from_numpy(tokens[:-1]))
        targets.append(torch.from_numpy(target))
    return ids, torch.cat(targets)


def mean_loss(logits, targets):
    """Sum of the token losses over the number of trained tokens."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum") / (targets != IGNORE).sum()


def has_balance(s):
    """Whether Transformers has a balance loss for it."""
    return s.n_experts > 0 and not s.family.startswith("deepseek")


class Pass(NamedTuple):
    """Of a batch."""

    logits: torch.Tensor
    balance: torch.Tensor | float = 0.0  # the router's losses, without their coefficients
    z: torch.Tensor | float = 0.0
    margin: float = math.inf  # of the choices of experts


def own(s, documents):
    """The pass of these documents through the plain decoder, as a function of the parameters."""
    def run(p):
        router = []
        logits = torch.cat([decoder.decode(p, s, d, router) for d in documents])
        margin = min((r.margin for r in router), default=math.inf)
        if not has_balance(s):
            return Pass(logits, margin=margin)
        return Pass(logits, decoder.balance_loss(s, router), decoder.z_loss([r.logits for r in router]), margin)

    return run


def reference(model, s, documents):
    """The same through Transformers, where it has the model."""
    def run(p):
        router = []
        logits = hugging_face.decode(model, s, p, documents, router)
        if not has_balance(s):
            return Pass(logits)
        return Pass(logits, hugging_face.balance_loss(s, router), decoder.z_loss(router))

    return own(s, documents) if model is None else run


def whole_loss(s, result, targets):
    """Of the tokens, and of the router with its coefficients."""
    loss = mean_loss(result.logits, targets)
    if s.router_aux:
        loss = loss + s.router_aux * result.balance
    return loss + s.router_z_loss * result.z if s.router_z_loss else loss


def leaves(parameters, dtype=torch.float32):
    return {n: torch.tensor(v, dtype=dtype, requires_grad=is_trained(n)) for n, v in parameters.items()}


def differentiate(loss, p):
    """An expert without tokens has gradients, of zero, as where all experts are one tensor."""
    loss.backward()
    for name, value in p.items():
        if value.grad is None and value.requires_grad:
            assert ".experts." in name, name
            value.grad = torch.zeros_like(value)


def first_pass(s, parameters, run, targets, dtype=torch.float32):
    p = leaves(parameters, dtype)
    result = run(p)
    loss = whole_loss(s, result, targets)
    differentiate(loss, p)
    grads = {n: v.grad for n, v in p.items() if v.requires_grad}
    return result._replace(logits=result.logits.detach()), loss.item(), grads


def train(s, parameters, run, targets, dtype=torch.float32):
    """Losses before each of ten AdamW steps and after the last, norms before clipping, final parameters, and the
    smallest margin of a choice of experts."""
    p = leaves(parameters, dtype)
    trained = [v for v in p.values() if v.requires_grad]
    decays = {n: v.ndim >= 2 and "bias" not in n for n, v in p.items()}  # as in Transformers' Trainer
    groups = [{"params": [v for n, v in p.items() if v.requires_grad and decays[n]], "weight_decay": WEIGHT_DECAY},
              {"params": [v for n, v in p.items() if v.requires_grad and not decays[n]], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, foreach=False)
    losses, norms, margins = [], [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        result = run(p)
        loss = whole_loss(s, result, targets)
        differentiate(loss, p)
        margins.append(result.margin)
        norms.append(torch.nn.utils.clip_grad_norm_(trained, MAX_NORM, foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    with torch.no_grad():
        result = run(p)
        losses.append(whole_loss(s, result, targets).item())
    return losses, norms, {n: v.detach() for n, v in p.items()}, min(margins + [result.margin])


def relative(a, b):
    if not b.any():  # an expert without tokens
        return 0.0 if not a.any() else math.inf
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def without_zeros(s, name, value):
    """value without the elements whose gradient is zero in exact arithmetic"""
    flat = value.reshape(-1)
    for entry in zero_gradients(s):
        zero_name, begin, end = entry.rsplit(":", 2)
        if zero_name == name:
            flat = torch.cat((flat[: int(begin)], flat[int(end):]))
    return flat


def controls(s, parameters, documents):
    """Largest change of a logit through one small mistake of each kind; must stand well above the tolerance."""
    mistakes = {"epsilon": dict(norm_epsilon=s.norm_epsilon * 10)}
    if s.positions == "rope":
        mistakes["theta"] = dict(rope_theta=s.rope_theta * 1.1)
    if s.sliding_window:
        mistakes["window"] = dict(sliding_window=s.sliding_window + 1)
    for field in dataclasses.fields(Shape):
        if field.name in OPTIONAL and getattr(s, field.name) != field.default and field.name not in NO_MISTAKE:
            if field.name == "partial_rotary_factor" and s.rope_scaling != "none":
                continue  # longrope has a number for each frequency
            mistakes[field.name] = {field.name: field.default}
    if s.n_experts:
        k = s.experts_per_token
        mistakes |= dict(norm_topk=dict(norm_topk=not s.norm_topk),
                         router_score=dict(router_score="sigmoid" if s.router_score == "softmax" else "softmax"))
        mistakes["experts_per_token"] = dict(experts_per_token=k + 1)
        if k > 1:
            mistakes["fewer_experts_per_token"] = dict(experts_per_token=k - 1)
    if s.kv_lora_rank:
        mistakes |= dict(rope_interleave=dict(rope_interleave=not s.rope_interleave),
                         latent_norm_epsilon=dict(latent_norm_epsilon=s.norm_epsilon))
    if s.n_expert_groups > 1:
        mistakes["n_expert_groups"] = dict(n_expert_groups=1, groups_per_token=1)
        mistakes["groups_per_token"] = dict(groups_per_token=s.groups_per_token + 1)
    if s.activation in ("gelu", "gelu_tanh"):
        mistakes["activation"] = dict(activation="gelu" if s.activation == "gelu_tanh" else "gelu_tanh")
    p = {n: torch.tensor(v, dtype=torch.float64) for n, v in parameters.items()}
    decode = lambda shape, p=p: torch.cat([decoder.decode(p, shape, d) for d in documents])
    right = decode(s)
    out = {k: (decode(dataclasses.replace(s, **m)) - right).abs().max().item() for k, m in mistakes.items()}
    unbiased = {n: v for n, v in p.items() if is_trained(n)}
    if len(unbiased) < len(p):
        out["score_bias"] = (decode(s, unbiased) - right).abs().max().item()
    return out


def autocast(run):
    def wrapped(p):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return run(p)

    return wrapped


def build_case(s, lengths, packed, seed):
    """Everything the file holds, or the reason why this seed will not do."""
    parameters = random_parameters(s, seed)
    rng = np.random.default_rng([seed, 1])
    documents, targets = random_batch(rng, lengths, packed)
    model = hugging_face.build(s)
    if model is not None:
        hugging_face.check_complete(model, s, parameters)

    run, plain = reference(model, s, documents), own(s, documents)
    exact_losses, exact_norms, exact_final, margin = train(s, parameters, plain, targets, torch.float64)
    if margin < ROUTER_MARGIN:
        return None, f"two experts are {margin:.1e} apart for a token"
    first, loss, grads = first_pass(s, parameters, run, targets)
    losses, norms, final, _ = train(s, parameters, run, targets)
    exact = first_pass(s, parameters, plain, targets, torch.float64)
    logits = first.logits

    compared = {n: (without_zeros(s, n, g), without_zeros(s, n, exact[2][n])) for n, g in grads.items()}
    agreement = {
        "logits": (logits - exact[0].logits).abs().max().item(),
        "gradients": max(relative(a, b) for a, b in compared.values()),
        "losses": max(abs(a - b) / abs(b) for a, b in zip(losses, exact_losses)),
        "grad_norms": max(abs(a - b) / b for a, b in zip(norms, exact_norms)),
        "final": max(relative(without_zeros(s, n, final[n]), without_zeros(s, n, exact_final[n])) for n in final),
    }
    if agreement["losses"] > LOSSES_AGREE:
        return None, f"losses in fp32 and fp64 differ by {agreement['losses']:.1e}"
    if has_balance(s):
        for a, b in ((first.balance, exact[0].balance), (first.z, exact[0].z)):
            assert abs(a.item() - b.item()) < 1e-5 * b.item(), (a, b)
    assert agreement["logits"] < 2e-5, agreement
    if agreement["gradients"] > 5e-6:
        return None, f"gradients in fp32 and fp64 differ by {agreement['gradients']:.1e}"
    mistakes = controls(s, parameters, documents)
    if min(mistakes.values()) < 2e-4:
        return None, f"a mistake would not show: {mistakes}"
    if max(norms) <= MAX_NORM:
        return None, "clipping never acts"

    low, low_loss, low_grads = first_pass(s, parameters, autocast(run), targets)
    low_losses, low_norms, _, _ = train(s, parameters, autocast(run), targets)
    errors = [low_loss - loss]
    for extra in range(2, 17):
        docs, wanted = random_batch(np.random.default_rng([seed, extra]), lengths, packed)
        with torch.no_grad():
            p = leaves(parameters)
            again = reference(model, s, docs)
            pair = [whole_loss(s, f(p), wanted).item() for f in (again, autocast(again))]
        errors.append(pair[1] - pair[0])
    return dict(parameters=parameters, documents=documents, targets=targets, logits=logits, loss=loss, grads=grads,
                losses=losses, norms=norms, final=final, agreement=agreement, controls=mistakes, margin=margin,
                router={"router_loss": first.balance, "router_z_loss": first.z} if has_balance(s) else {},
                source="own decoder" if model is None else type(model).__name__,
                low=dict(logits=low.logits.float(), loss=low_loss, grads=low_grads, losses=low_losses, norms=low_norms,
                         loss_error=float(np.sqrt(np.mean(np.square(errors)))))), None


def rounded(value, bits):
    """value to `bits` significant bits, so that the files compress"""
    mantissa, exponent = np.frexp(value.double().numpy())
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


def write_case(path, name, s, seed, r):
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        def put(where, value, dtype=np.float32):
            value = np.ascontiguousarray(np.asarray(value), dtype=dtype)
            small = value.size < 256
            return f.create_dataset(where, data=value, compression=None if small else "gzip",
                                    compression_opts=None if small else 9, shuffle=not small)

        f.attrs["case"] = name
        for key, value in dataclasses.asdict(s).items():
            if key in OPTIONAL and value == getattr(Shape, key):
                continue
            f.attrs[key] = np.int64(value) if isinstance(value, (bool, int)) else value
        f.attrs["seed"] = np.int64(seed)
        f.attrs["made_by"] = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
        f.attrs["source"] = r["source"]
        f.attrs["zero_gradients"] = "\n".join(zero_gradients(s))
        for key, value in dict(learning_rate=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], epsilon=EPSILON,
                               weight_decay=WEIGHT_DECAY, max_grad_norm=MAX_NORM).items():
            f.attrs[f"adamw_{key}"] = value
        for key, value in r["agreement"].items():
            f.attrs[f"fp64_{key}_error"] = value
        for key, value in r["controls"].items():
            f.attrs[f"control_{key}"] = value
        if s.n_experts:
            f.attrs["router_margin"] = r["margin"]

        lengths = [len(d) for d in r["documents"]]
        put("ids", torch.cat(r["documents"]), np.int32)
        put("targets", r["targets"], np.int32)
        put("positions", np.concatenate([np.arange(n) for n in lengths]), np.int32)
        put("segments", np.cumsum([0] + lengths), np.int32)
        for prefix, data in (("", r), ("bf16/", r["low"])):
            put(f"{prefix}logits", data["logits"])
            put(f"{prefix}loss", data["loss"], np.float64)
            put(f"{prefix}losses", data["losses"], np.float64)
            put(f"{prefix}grad_norms", data["norms"], np.float64)
        for key, value in r["router"].items():
            put(key, value.item(), np.float64)
        f["bf16"].attrs["loss_error"] = r["low"]["loss_error"]
        for key in parameter_shapes(s):
            put(f"params/{key}", r["parameters"][key])
            if is_trained(key):
                grad = put(f"grads/{key}", rounded(r["grads"][key], GRADIENT_BITS))
                error = without_zeros(s, key, r["low"]["grads"][key] - r["grads"][key])
                grad.attrs["bf16_error"] = error.double().norm().item()
                grad.attrs["norm"] = without_zeros(s, key, r["grads"][key]).double().norm().item()
            f[f"params/{key}"].attrs["final_norm"] = without_zeros(s, key, r["final"][key]).double().norm().item()


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = pathlib.Path(__file__).parent / "models"
    for name in sys.argv[1:] or CASES:
        s, lengths, packed = CASES[name]
        for seed in range(1, 100):
            result, reason = build_case(s, lengths, packed, seed)
            if result:
                break
            print(f"{name}: seed {seed}: {reason}")
        else:
            raise SystemExit(f"{name}: no seed will do")
        path = folder / f"{name}.h5"
        write_case(path, name, s, seed, result)
        facts = {k: f"{v:.1e}" for k, v in (result["agreement"] | result["controls"]).items()}
        print(f"{name}: seed {seed}, {result['source']}, {path.stat().st_size / 1000:.0f} kB, loss "
              f"{result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}, norm {result['norms'][0]:.2f}, {facts}")


if __name__ == "__main__":
    main()
