"""Writes starts.safetensors: adapters that start from the matrices of ../hf/llama and ../hf/gpt2 (PiSSA, OLoRA, LoftQ).

`<init>.<model>.<module>.product`: scale x B A as PEFT begins, [outputs, inputs] (the signs of singular vectors are free);
`.base`: the frozen matrix, as the model has it. r = 4 and lora_alpha = 8; LoftQ: lora_alpha = 4. LoftQ's script needs a GPU
for bitsandbytes: here its steps are taken on a processor, quantisation by bitsandbytes (nf4, blocks of 64, not doubly
quantised) and decomposition by PEFT's function.
Made with torch 2.15.0, transformers 5.23.0, peft 0.21.2, bitsandbytes 0.50.2, Python 3.11.
"""
import pathlib

import bitsandbytes.functional as bnb
import peft
import torch
import transformers
from peft.utils.loftq_utils import _low_rank_decomposition
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
MODULES = {"llama": ["model.layers.1.self_attn.k_proj", "model.layers.1.mlp.down_proj"],
           "gpt2": ["transformer.h.1.mlp.c_fc"]}
RANK = 4


def model_of(name):
    return transformers.AutoModelForCausalLM.from_pretrained(HERE.parent / "hf" / name, dtype=torch.float32)


def main():
    out = {}
    for name, modules in MODULES.items():
        ids = torch.tensor([[5, 6, 7, 8, 9]])
        with torch.no_grad():
            plain = model_of(name).eval()(ids).logits
        for init in ("pissa", "olora"):
            if init == "olora" and name == "gpt2":
                continue  # PEFT does not turn Conv1D's matrices here
            config = peft.LoraConfig(r=RANK, lora_alpha=8, target_modules="all-linear", init_lora_weights=init)
            model = peft.get_peft_model(model_of(name), config).eval()
            with torch.no_grad():
                assert torch.allclose(model(ids).logits, plain, atol=1e-5), init
            layers = dict(model.base_model.model.named_modules())
            for module in modules:
                layer = layers[module]
                key = f"{init}.{name}.{module}"
                product = layer.scaling["default"] * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
                out[key + ".product"] = product.detach().contiguous()
                out[key + ".base"] = layer.base_layer.weight.detach().clone().contiguous()
    for module in MODULES["llama"]:
        weight = model_of("llama").get_submodule(module).weight.detach()
        codes, state = bnb.quantize_4bit(weight.contiguous(), blocksize=64, compress_statistics=False, quant_type="nf4")
        stored = bnb.dequantize_4bit(codes, state)
        parts = _low_rank_decomposition(weight - stored, reduced_rank=RANK)
        out[f"loftq.llama.{module}.product"] = (parts["L"] @ parts["R"]).contiguous()
        out[f"loftq.llama.{module}.base"] = stored.contiguous()
    save_file(out, HERE / "starts.safetensors", metadata={"format": "pt"})
    print({name: tuple(value.shape) for name, value in out.items()})


if __name__ == "__main__":
    main()
