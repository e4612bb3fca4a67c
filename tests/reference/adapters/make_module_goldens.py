"""Writes modules.json: which modules PEFT adapts, and which tensors of the model it trains, for many settings.

    python make_module_goldens.py

The models are those of ../hf. Of each setting: the keys of LoraConfig, the adapted modules as numbers in the family's
list, and the trained tensors that are not the adapter's. Where PEFT refuses a setting, its error instead.
"""

import json
import pathlib
import warnings

import peft
import torch
import transformers

HERE = pathlib.Path(__file__).parent
LLAMA = [
    dict(target_modules="all-linear"),
    dict(target_modules=["q_proj", "v_proj"]),
    dict(target_modules=["self_attn.o_proj", "model.layers.1.mlp.down_proj"]),
    dict(target_modules=["roj"]),
    dict(target_modules=["mlp"]),
    dict(target_modules=r".*\.(q|v)_proj"),
    dict(target_modules=r"model\.layers\.[01]\.mlp\.(?P<part>up|down)_proj"),
    dict(target_modules=r"(?i)MODEL.LAYERS.\d{1,2}.MLP.UP_PROJ"),
    dict(target_modules="q_proj|.*1.*k_proj"),
    dict(target_modules=r"(?!.*mlp).*_proj"),
    dict(target_modules=["q_proj", "up_proj"], layers_to_transform=[1]),
    dict(target_modules=["q_proj", "model.layers.0.self_attn.k_proj"], layers_to_transform=[1], layers_pattern="layers"),
    dict(target_modules=["q_proj"], layers_to_transform=[0, 1], layers_pattern=["h", "lay.rs"]),
    dict(target_modules=["q_proj"], layers_to_transform=[0], layers_pattern="h"),
    dict(target_modules="all-linear", exclude_modules=["down_proj", "self_attn.k_proj"]),
    dict(target_modules="all-linear", exclude_modules=r".*\.0\..*"),
    dict(target_modules=["q_proj", "gate_proj"], modules_to_save=["mlp"]),
    dict(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "model.norm"]),
    dict(target_modules=["q_proj"], modules_to_save=["norm"]),
    dict(target_modules=["q_proj", "k_proj", "v_proj"], bias="all"),
    dict(target_modules=["q_proj", "k_proj", "v_proj"], bias="lora_only"),
    dict(target_modules=["q_proj", "v_proj"], bias="lora_only"),
    dict(target_modules=["v_proj"], modules_to_save=["k_proj", "up_proj"]),
    dict(target_modules=["q_proj", "c_attn"], exclude_modules=["zzz"], layers_to_transform=[1, 7],
         modules_to_save=["lm_head", "score"], rank_pattern={"q_proj": 3, "o_proj": 4}),
    dict(target_modules="all-linear", exclude_modules=r".*zzz", alpha_pattern={"zzz": 3}),
    dict(target_modules=["q_proj", "model.layers.0.self_attn.v_proj"], layers_to_transform=[9]),
    dict(target_modules=["q_proj"], layers_to_transform=[9]),
    dict(target_modules=["embed_tokens"]),
    dict(target_modules=["lm_head"]),
]
PHI3 = [
    dict(target_modules="all-linear"),
    dict(target_modules=["qkv_proj"]),
    dict(target_modules=["gate_up_proj", "o_proj"], layers_to_transform=[0]),
    dict(target_modules=r".*self_attn\.(qkv|o)_proj"),
    dict(target_modules=["q_proj"]),
    dict(target_modules=["qkv_proj"], modules_to_save=["input_layernorm"]),
]
GPT2 = [
    dict(target_modules="all-linear"),
    dict(target_modules=["c_attn"]),
    dict(target_modules=["c_proj"]),
    dict(target_modules=["mlp.c_proj"], layers_to_transform=[1], layers_pattern="h"),
    dict(target_modules=["attn"]),
    dict(target_modules=["c_attn", "q_proj"], modules_to_save=["score"]),
    dict(target_modules=["c_attn"], bias="all"),
    dict(target_modules=["c_attn", "mlp.c_proj"], bias="lora_only"),
    dict(target_modules=["c_attn"], modules_to_save=["ln_f", "wpe"]),
    dict(target_modules=["c_attn"], modules_to_save=["attn"]),
    dict(target_modules=r"transformer\.h\.\d+\.attn\.c_.*", exclude_modules=["c_attn"]),
]
NEOX = [
    dict(target_modules="all-linear"),
    dict(target_modules=["query_key_value"]),
    dict(target_modules=["dense"]),
    dict(target_modules=["mlp"]),
    dict(target_modules=["query_key_value", "q_proj"]),
    dict(target_modules=["dense_4h_to_h"], layers_to_transform=[1]),
    dict(target_modules=["query_key_value"], bias="all"),
    dict(target_modules=["query_key_value", "dense_h_to_4h"], bias="lora_only"),
    dict(target_modules=["dense"], modules_to_save=["dense_4h_to_h"]),
    dict(target_modules=r".*\.1\..*dense", exclude_modules=["mlp"]),
]
STARCODER = [dict(target_modules="all-linear"), dict(target_modules=["c_fc"]),
             dict(target_modules=["q_proj", "c_proj"], bias="lora_only")]
SETTINGS = {name: LLAMA for name in ("llama", "mistral", "qwen2", "qwen3", "gemma2")} | {
    "phi3": PHI3, "gpt2": GPT2, "gpt_neox": NEOX, "falcon_grouped": NEOX, "starcoder2": STARCODER}


def of_model(model, setting):
    try:
        tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=2, **setting))
    except Exception as error:
        return {"error": str(error).split(".")[0][:80]}
    trained = []
    for name, parameter in tuned.named_parameters():
        if parameter.requires_grad and "lora_" not in name:
            name = name.removeprefix("base_model.model.")
            trained.append(name.replace(".modules_to_save.default", "").replace(".base_layer", ""))
    return {"modules": sorted(tuned.base_model.targeted_module_names), "trained": sorted(set(trained))}


def main():
    out = {"peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    for family, settings in SETTINGS.items():
        folder, rows = HERE.parent / "hf" / family, []
        for setting in settings:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            rows.append({"config": setting} | of_model(model, setting))
        modules = sorted({module for row in rows for module in row.get("modules", [])})
        for row in rows:
            if "modules" in row:
                row["modules"] = [modules.index(module) for module in row["modules"]]
        out[family] = {"modules": modules, "settings": rows}
    text = json.dumps(out)
    (HERE / "modules.json").write_text(text.replace('{"config"', '\n{"config"') + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    main()
