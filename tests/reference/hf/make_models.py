"""Writes <case>/: tiny random models as Transformers saves them, and the logits that it computes from what it saved.

    python make_models.py [CASE...]

expected.json, of from_pretrained(..., dtype=float32) with eager attention: input_ids [T], logits fp32 [T, V]; greedy:
prompts and the token ids that generate() continues them with, and the smallest distance of the best logit to the next.
Norm weights, biases and scores are random and of order 1, so that no mistake hides behind a default.
"""

import json
import logging
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
VOCABULARY, TOKENS = 41, 19
GEMMAS = ("gemma2", "gemma3_text")
SIZES = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=None)
OLDER = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "intermediate_size")}
NEOX = OLDER | dict(intermediate_size=40)
ROUTED = SIZES | dict(num_experts_per_tok=2)
LATENT = SIZES | dict(num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=10, qk_nope_head_dim=8, v_head_dim=6,
                      qk_rope_head_dim=4, n_routed_experts=6, moe_intermediate_size=12, first_k_dense_replace=1)
YARN = dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=16, beta_fast=3.0, beta_slow=0.5,
            mscale=1.2, mscale_all_dim=0.7, rope_theta=100.0)
GPT2 = dict(vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=3, n_positions=32, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=2.0,
              original_max_position_embeddings=16, rope_theta=100.0)

# name: (model_type, settings, dtype of the files, bytes of a file)
CASES = {
    "gpt2": ("gpt2", GPT2, torch.float32, None),
    "gpt2_published": ("gpt2", GPT2 | dict(activation_function="gelu_new"), torch.float32, None),
    "llama": ("llama", SIZES | dict(rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=50.0)),
              torch.float32, None),
    "llama3_v4_sharded": ("llama", SIZES | dict(tie_word_embeddings=True, rope_parameters=LLAMA3), torch.bfloat16, 5000),
    "mistral": ("mistral", SIZES | dict(sliding_window=7, head_dim=10), torch.float32, None),
    "qwen2": ("qwen2", SIZES | dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=6,
                                    max_window_layers=1), torch.bfloat16, None),
    "qwen3": ("qwen3", SIZES | dict(head_dim=10), torch.float32, None),
    "gemma2": ("gemma2", SIZES | dict(head_dim=10, query_pre_attn_scalar=12, sliding_window=8,
                                      attn_logit_softcapping=3.0, final_logit_softcapping=4.0), torch.float32, None),
    "phi3": ("phi3", SIZES | dict(num_key_value_heads=4, original_max_position_embeddings=16, pad_token_id=0,
                                  rope_parameters=dict(rope_type="longrope", rope_theta=100.0,
                                                       short_factor=[1.0, 1.1, 1.3], long_factor=[1.0, 2.0, 4.0])),
             torch.float16, None),
    "mixtral": ("mixtral", ROUTED | dict(num_local_experts=4, intermediate_size=20, sliding_window=7), torch.float32,
                None),
    # Names and tensors as Transformers has them in memory: the experts of a layer are one tensor.
    "mixtral_fused": ("mixtral", ROUTED | dict(num_local_experts=4, intermediate_size=20), torch.bfloat16, None),
    "olmoe": ("olmoe", ROUTED | dict(num_experts=6, num_experts_per_tok=3, intermediate_size=12), torch.float32, None),
    "qwen2_moe": ("qwen2_moe", ROUTED | dict(num_experts=4, moe_intermediate_size=16, norm_topk_prob=True,
                                             shared_expert_intermediate_size=28, num_hidden_layers=3,
                                             decoder_sparse_step=2, use_sliding_window=True, sliding_window=6,
                                             max_window_layers=2), torch.float32, None),
    "qwen3_moe": ("qwen3_moe", ROUTED | dict(num_experts=5, moe_intermediate_size=16, norm_topk_prob=True, head_dim=10,
                                             mlp_only_layers=[0]), torch.bfloat16, None),
    "deepseek_v2": ("deepseek_v2", LATENT | dict(q_lora_rank=None, n_shared_experts=2, num_experts_per_tok=2,
                                                 rope_parameters=YARN), torch.bfloat16, None),
    "deepseek_v3": ("deepseek_v3", LATENT | dict(q_lora_rank=14, n_shared_experts=1, n_group=3, topk_group=2,
                                                 num_experts_per_tok=3, num_nextn_predict_layers=0),
                    torch.float32, None),
    "gpt_oss": ("gpt_oss", ROUTED | dict(num_local_experts=4, intermediate_size=20, head_dim=10, sliding_window=7,
                                         swiglu_limit=1.5, rope_parameters=YARN), torch.bfloat16, None),
    "qwen2_moe_between": ("qwen2_moe", ROUTED | dict(num_experts=5, moe_intermediate_size=12, num_hidden_layers=3,
                                                     shared_expert_intermediate_size=16, mlp_only_layers=[1]),
                          torch.float32, None),
    "phi4": ("phi3", SIZES | dict(hidden_size=32, original_max_position_embeddings=16, pad_token_id=0,
                                  tie_word_embeddings=True, partial_rotary_factor=0.75,
                                  rope_parameters=dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.75,
                                                       short_factor=[1.0, 1.1, 1.3], long_factor=[1.0, 2.0, 4.0])),
             torch.bfloat16, None),
    "starcoder2": ("starcoder2", SIZES | dict(sliding_window=7), torch.float32, None),
    "granite": ("granite", SIZES | dict(embedding_multiplier=0.7, residual_multiplier=1.3,
                                        attention_multiplier=0.5, logits_scaling=0.5), torch.bfloat16, None),
    "smollm3": ("smollm3", SIZES | dict(num_hidden_layers=4), torch.bfloat16, None),
    "olmo2": ("olmo2", SIZES, torch.bfloat16, None),
    "gpt_neox": ("gpt_neox", NEOX | dict(num_attention_heads=3, rope_parameters=dict(rope_type="default", rope_theta=100.0,
                                                               partial_rotary_factor=0.5)), torch.float32, None),
    "pythia": ("gpt_neox", NEOX | dict(use_parallel_residual=False, num_attention_heads=3), torch.float16, None),
    "falcon": ("falcon", OLDER | dict(num_attention_heads=3), torch.float32, None),
    "falcon_grouped": ("falcon", OLDER | dict(new_decoder_architecture=True, num_kv_heads=2),
                       torch.bfloat16, None),
    "gemma3": ("gemma3_text", SIZES | dict(num_hidden_layers=6, head_dim=10, query_pre_attn_scalar=12, sliding_window=8,
                                           num_attention_heads=2, num_key_value_heads=1, intermediate_size=20,
                                           rope_parameters=dict(
                                               full_attention=dict(rope_type="linear", factor=2.0, rope_theta=500.0),
                                               sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
               torch.bfloat16, None),
}


def randomize(model, seed):
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        biases = [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
        for name, p in sorted([*model.named_parameters(), *biases]):
            shape = tuple(p.shape)
            if "norm" in name or ".ln_" in name:
                zero_centred = model.config.model_type in GEMMAS or name.endswith("bias")
                value = generator.normal(0.0 if zero_centred else 1.0, 0.25, shape)
            elif name.endswith("bias"):
                value = generator.normal(0.0, 0.2, shape)
            elif "embed" in name or "wte" in name or "wpe" in name:
                scale = 0.06 if model.config.model_type in GEMMAS else 0.25  # they multiply by sqrt(width)
                value = generator.normal(0.0, scale, shape)
            else:
                transposed = dict(gpt2="lm_head" not in name, gpt_oss=".experts." in name)
                fan_in = shape[-2 if transposed.get(model.config.model_type) else -1]
                value = generator.normal(0.0, 1.1 / np.sqrt(fan_in), shape)
            p.copy_(torch.from_numpy(value).to(p.dtype))


def to_v4(folder):
    """config.json as Transformers 4 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def as_published(folder):
    """Names and extra tensors of the GPT-2 that OpenAI's weights were converted to."""
    path = folder / "model.safetensors"
    tensors = {n.removeprefix("transformer."): t for n, t in load_file(path).items()}
    for layer in range(GPT2["n_layer"]):
        mask = torch.ones(GPT2["n_positions"], GPT2["n_positions"]).tril()
        tensors[f"h.{layer}.attn.bias"] = mask[None, None]
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config = config | dict(n_ctx=GPT2["n_positions"], task_specific_params={"text-generation": {"do_sample": True}})
    for key in ("dtype", "transformers_version", "add_cross_attention", "pad_token_id"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def as_pythia(folder):
    """Keys and extra tensors of Pythia's published folders."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for layer in range(SIZES["num_hidden_layers"]):
        attention = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{attention}.bias"] = torch.ones(32, 32).tril()[None, None].bool()
        tensors[f"{attention}.masked_bias"] = torch.tensor(-1e9)
        tensors[f"{attention}.rotary_emb.inv_freq"] = torch.ones(1)
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= dict(rotary_emb_base=int(rope["rope_theta"]), rotary_pct=rope["partial_rotary_factor"],
                   torch_dtype=config.pop("dtype"))
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def greedy(model, prompt):
    """9 new tokens: of phi3 the short prompt stays on the short factors of rope, the long one has the long ones."""
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        ids = torch.from_numpy(prompt)[None]  # none of which is padding
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=9, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True)
    best = torch.stack(out.logits)[:, 0].topk(2).values
    margin = (best[:, 0] - best[:, 1]).min().item()
    if margin < 1e-3 or len(set(out.sequences[0, len(prompt):].tolist())) < 3:
        return None  # rounding may decide, or it only repeats itself
    return dict(prompt=prompt.tolist(), new=out.sequences[0, len(prompt):].tolist(), margin=float(f"{margin:.3g}"))


def routing_margin(model, ids):
    """The smallest relative distance of a token's last expert to the best one left out."""
    if "num_experts_per_tok" not in model.config.to_dict():
        return 1.0
    with torch.no_grad():
        router = model(torch.tensor([ids]), use_cache=False, output_router_logits=True).router_logits
    k = model.config.num_experts_per_tok
    biases = [b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
    scores = [x.sigmoid() + b for x, b in zip(router, biases)] if biases else [x.softmax(-1) for x in router]
    best = torch.cat(scores).topk(k + 1).values
    return (1 - best[:, k] / best[:, k - 1]).min().item()


def make(name, number):
    """With the first seed whose continuations tell right from wrong."""
    for attempt in range(100):
        if try_to_make(name, [number, attempt]):
            return
    raise RuntimeError(name)


def try_to_make(name, seed):
    model_type, settings, dtype, file_bytes = CASES[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    randomize(model, seed)
    options = {} if file_bytes is None else dict(max_shard_size=file_bytes)
    if name.endswith("_fused"):
        options |= dict(save_original_format=False)
    model.to(dtype).save_pretrained(folder, **options)
    if name == "llama3_v4_sharded":
        to_v4(folder)
    if name == "pythia":
        as_pythia(folder)
    if name == "gpt2_published":
        as_published(folder)
    saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = np.random.default_rng([*seed, 1]).integers(0, VOCABULARY, TOKENS)
    continuations = [greedy(saved, ids[:n]) for n in (5, 17)]
    if None in continuations:
        return False
    if min(routing_margin(saved, x) for x in [ids.tolist()] + [c["prompt"] + c["new"] for c in continuations]) < 1e-3:
        return False  # rounding may choose another expert
    with torch.no_grad():
        logits = saved(torch.from_numpy(ids)[None], use_cache=False).logits[0]
    expected = dict(made_by=f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}",
                    input_ids=ids.tolist(), greedy=continuations, logits=[[float(f"{x:.9g}") for x in row] for row in logits.tolist()])
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes,",
          "largest logit", round(logits.abs().max().item(), 2), "seed", seed)
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    for case in sys.argv[1:] or CASES:
        make(case, list(CASES).index(case))
