"""Writes <case>/: adapters of the models in ../hf as PEFT saves them, and what it computes with them.

    python make_adapter_goldens.py [CASE...]

expected.json: the model, ids and the logits of the adapted model (fp32). merged.safetensors: the tensors of layer 1, and of
modules_to_save, that merge_and_unload changes, fp32; not for the cases of tables, of which merge_and_unload makes another
model where they are tied (it adds both adapters to the one matrix), nor of experts, which it leaves fused. A, B,
magnitudes, biases and saved modules are random, so that each of them shows in the logits.
"""

import json
import pathlib
import shutil
import sys
import warnings

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent

# name: (folder in ../hf, settings)
CASES = {
    "llama_qv": ("llama", dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"])),
    "llama_dora": ("llama", dict(r=4, lora_alpha=6, target_modules="all-linear", use_dora=True, use_rslora=True,
                                 rank_pattern={"q_proj": 2, r".*\.1\.mlp\.down_proj": 5}, alpha_pattern={"o_proj": 9})),
    "gpt2_bias": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True, bias="all",
                               modules_to_save=["ln_f"])),
    "gpt2_dora": ("gpt2", dict(r=2, lora_alpha=3, target_modules="all-linear", fan_in_fan_out=True, use_dora=True)),
    "phi3_fused": ("phi3", dict(r=4, lora_alpha=4, target_modules=["qkv_proj", "gate_up_proj"])),
    "qwen2_tied": ("qwen2", dict(r=2, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj"], bias="lora_only",
                                 modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "qwen2_part": ("qwen2", dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], bias="lora_only",
                                 modules_to_save=["up_proj", "1.self_attn.k_proj"])),
    "gemma2_layers": ("gemma2", dict(r=2, lora_alpha=2, target_modules=["o_proj", "up_proj"], layers_to_transform=[1],
                                     use_dora=True)),
    "neox_fused": ("gpt_neox", dict(r=2, lora_alpha=4, target_modules=["query_key_value", "dense_4h_to_h"])),
    "falcon_dora": ("falcon_grouped", dict(r=2, lora_alpha=4, target_modules="all-linear", use_dora=True)),
    "qwen3_regex": ("qwen3", dict(r=2, lora_alpha=7, target_modules=r".*\.(?:k_proj|down_proj)",
                                  modules_to_save=["lm_head"])),
}

# Adapters of embeddings and heads, tables beside adapters, and grown vocabularies.
TABLES = {
    "llama_tables": ("llama", dict(r=2, lora_alpha=4, target_modules=["q_proj", "lm_head", "embed_tokens"])),
    "gpt2_tables": ("gpt2", dict(r=2, lora_alpha=3, target_modules=["c_attn", "wte", "wpe", "lm_head"],
                                 fan_in_fan_out=True)),
    "gemma2_head": ("gemma2", dict(r=2, lora_alpha=4, target_modules=["q_proj", "lm_head"])),
    "qwen2_apart": ("qwen2", dict(r=2, lora_alpha=4, target_modules=["q_proj"],
                                  modules_to_save=["embed_tokens", "lm_head"])),
    "qwen2_embedding": ("qwen2", dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"])),
    "llama_saved": ("llama", dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])),
    "llama_grown": ("llama", dict(r=2, lora_alpha=4, target_modules=["q_proj", "lm_head", "embed_tokens"])),
    "qwen2_grown": ("qwen2", dict(r=2, lora_alpha=4, target_modules=["q_proj"])),
    "mistral_grown": ("mistral", dict(r=2, lora_alpha=4, target_modules=["q_proj"],
                                      modules_to_save=["embed_tokens", "lm_head"])),
}

# Adapters of fused experts. Of the names of matrices that are fused now, PEFT makes target_parameters itself.
EXPERTS = {
    "mixtral_named": ("mixtral", dict(r=2, lora_alpha=3, target_modules=["q_proj", "w1", "w2", "w3"])),
    "qwen2_moe_both": ("qwen2_moe", dict(r=2, lora_alpha=4, use_rslora=True, target_modules=["v_proj", "o_proj"],
                                         target_parameters=["experts.down_proj", "mlp.experts.gate_up_proj"],
                                         rank_pattern={"v_proj": 3, r"1\.mlp\.experts\.gate_up_proj": 1},
                                         alpha_pattern={".*down_proj": 7})),
    "qwen3_moe_down": ("qwen3_moe", dict(r=3, lora_alpha=3, target_modules=[],
                                         target_parameters=["mlp.experts.down_proj"])),
    "olmoe_first": ("olmoe", dict(r=1, lora_alpha=2, target_modules=["q_proj", "gate_proj", "up_proj"],
                                  exclude_modules=["1.self_attn.q_proj"])),
    "gpt_oss_layer": ("gpt_oss", dict(r=2, lora_alpha=4, target_modules="all-linear",
                                      target_parameters=["1.mlp.experts.gate_up_proj", "1.mlp.experts.down_proj"])),
}


def change_tables(model, case, seed):
    """Grows the vocabulary by some tokens, and moves the base's tables."""
    if case.endswith("_grown"):
        torch.manual_seed(seed)
        model.resize_token_embeddings(model.config.vocab_size + 3)
    if case.endswith(("_grown", "_saved")):
        generator = np.random.default_rng(seed + 100)
        with torch.no_grad():
            for table in {id(m.weight): m for m in (model.get_input_embeddings(), model.get_output_embeddings())}.values():
                table.weight += 0.1 * torch.tensor(generator.normal(0, 1, tuple(table.weight.shape)), dtype=torch.float32)


def randomize(model, seed):
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if not parameter.requires_grad:
                continue
            noise = torch.tensor(generator.normal(0, 1, tuple(parameter.shape)), dtype=torch.float32)
            if "lora_magnitude" in name:
                parameter *= 1 + 0.2 * noise
            elif "lora_" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter += 0.1 * noise


def write(case, seed):
    base, settings = (CASES | TABLES | EXPERTS)[case]
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True)
    source = HERE.parent / "hf" / base
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    change_tables(model, case, seed)
    tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    tuned.peft_config["default"].base_model_name_or_path = base
    randomize(tuned, seed)
    tuned.eval()
    tuned.save_pretrained(folder, save_embedding_layers=True if case.endswith(("_grown", "_saved")) else "auto")
    (folder / "README.md").unlink()
    ids = json.loads((source / "expected.json").read_text())["input_ids"]
    if case.endswith("_grown"):
        ids = ids[:4] + [model.config.vocab_size - 1] + ids[4:]
    with torch.no_grad():
        logits = tuned(torch.tensor([ids])).logits[0]
    if case in CASES:
        write_merged(folder, tuned, before, ids, logits)
    out = {"model": base, "peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__,
           "input_ids": ids, "logits": [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]}
    (folder / "expected.json").write_text(json.dumps(out) + "\n")
    print(case)


def write_merged(folder, tuned, before, ids, logits):
    with torch.no_grad():
        merged = tuned.merge_and_unload()
        error = (merged(torch.tensor([ids])).logits[0] - logits).abs().max().item()
    assert error < 2e-5, error
    changed = {}
    for name, value in merged.state_dict().items():
        layer = ".1." in name or ".0." not in name
        if layer and (name not in before or not torch.equal(before[name], value)):
            changed[name] = value.clone().contiguous()
    save_file(changed, folder / "merged.safetensors", metadata={"format": "pt"})
    print(f"{error:.1e}", len(changed), "tensors")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for number, name in enumerate(CASES | TABLES | EXPERTS):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            write(name, number)
