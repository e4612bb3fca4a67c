#!/usr/bin/env python3
"""variants.json: what Transformers computes with the models of this folder when their files are written otherwise: the
other name of a tied pair, architectures and keys that it does not read, rope kinds with keys of other kinds.

    python make_variants.py        (transformers 5.24.0, torch 2.15.0, safetensors)

Each variant: a model, changes of its config.json (null removes nothing: it is a value), renamed tensors, and the
log-probabilities of its input_ids. The values of a variant are those of AutoModelForCausalLM on the changed folder.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "finetuned": True}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "beta_fast": 3}
VARIANTS = [
    ("gemma2", {"tie_word_embeddings": True}, {"model.embed_tokens.weight": "lm_head.weight"}),
    ("gpt2", {"tie_word_embeddings": True}, {"transformer.wte.weight": "lm_head.weight"}),
    ("llama", {"architectures": ["LLaMAForCausalLM"]}, {}),
    ("llama", {"architectures": ["XverseForCausalLM"], "num_experts": 8, "sliding_window": 3, "mlp_biases": True}, {}),
    ("llama", {"xla_device": None, "eos_token_ids": None, "pretraining_tp": 2, "pruned_heads": {}}, {}),
    ("llama", {"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}}, {}),
    ("llama", {"rope_parameters": None, "rope_scaling": YARN, "rope_theta": 500.0}, {}),
    ("llama", {"rope_parameters": None, "rope_scaling": LLAMA3, "rope_theta": 500.0}, {}),
    ("qwen2", {"attention_bias": False, "mlp_bias": True}, {}),
    ("mistral", {"layer_types": ["full_attention", "full_attention"]}, {}),
    ("mistral", {"layer_types": ["attention", "sliding_attention"]}, {}),
    ("mistral", {"layer_types": ["sliding_attention", "full_attention"], "model_type": "ministral"}, {}),
    ("phi3", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5}, {}),
    ("llama", {"architectures": "LlamaForCausalLM", "use_bidirectional_attention": True, "is_causal": True,
               "rope_interleaved": True, "pruned_heads": {"0": [1]}, "add_cross_attention": True,
               "compression_config": {"x": 1}, "partial_rotary_factor": 0.5, "per_layer_config": {}}, {}),
    ("qwen2", {"use_mrope": True, "layer_types": ["attention", "attention"]}, {}),
]


def logprobs(folder, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        values = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return [round(values[i, ids[i + 1]].item(), 7) for i in range(len(ids) - 1)]


def main():
    out = []
    for name, config, renamed in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder) / "model"
            shutil.copytree(HERE / name, folder)
            path = folder / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | config))
            weights = load_file(folder / "model.safetensors")
            save_file({renamed.get(k, k): v for k, v in weights.items()}, folder / "model.safetensors",
                      metadata={"format": "pt"})
            ids = json.loads((folder / "expected.json").read_text())["input_ids"]
            out.append({"model": name, "config": config, "renamed": renamed, "input_ids": ids,
                        "logprobs": logprobs(folder, ids)})
    text = ",\n".join(json.dumps(v) for v in out)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "variants.json").write_text(f'{{"versions": {json.dumps(versions)},\n"variants": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
