"""Writes llama_gptq/, llama_gptq_v2/ and llama_awq/: a small model with matrices of 4 bits in the published layouts.

model.safetensors: packed here from the definitions. llama_gptq: zero points minus 1, groups of 16 inputs in another
order (desc_act), biases of zeros as AutoGPTQ writes them; llama_gptq_v2: symmetric, one group (group_size -1); llama_awq:
gemm, groups of 16. expected.safetensors: `dequantized.<name>` of two matrices. expected.json: log-probabilities of a row of
ids by Transformers' model in fp32 with these weights.

The script checks its packing: AutoGPTQ's QuantLinear (auto-gptq 0.7.1, qlinear_cuda) packs the same words, and gives the
same weights for the identity; the second version has its words with 1 added to every zero point; AutoAWQ's WQLinear_GEMM and dequantize_gemm (autoawq 0.2.9) do so for llama_awq. Their files
are loaded alone: python make_packed_folders.py FOLDER_OF_AUTO_GPTQ FOLDER_OF_AUTOAWQ (unpacked wheel and source).
Made with torch 2.15.0, transformers 5.23.0, Python 3.11.
"""
import importlib.util
import json
import pathlib
import shutil
import sys
import types

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
IDS = [(7 * t * t + 3 * t + 1) % 41 for t in range(24)]


def in_words(codes, axis):
    """8 codes of 4 bits a word, the first in the lowest bits."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    words = np.zeros(codes.shape[:-1] + (codes.shape[-1] // 8,), np.uint32)
    for place in range(8):
        words |= codes[..., place::8] << np.uint32(4 * place)
    return torch.from_numpy(np.moveaxis(words, -1, axis).copy().view(np.int32))


def interleaved(codes):
    return codes.reshape(codes.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(codes.shape)


def quantized(weight, groups, symmetric):
    """Codes [out, in], scales and zero points [out, groups], and the weights in fp16, of rounding to nearest."""
    count = int(groups.max()) + 1
    scales, zeros = torch.zeros(weight.shape[0], count), torch.zeros(weight.shape[0], count)
    for g in range(count):
        part = weight[:, groups == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            scales[:, g], zeros[:, g] = torch.maximum(-low, high) / 7.5, 8
        else:
            scales[:, g] = (high - low) / 15
            zeros[:, g] = (-low / scales[:, g]).round().clamp(1, 15)
    scales = scales.half()
    codes = (weight / scales.float()[:, groups] + zeros[:, groups]).round().clamp(0, 15)
    values = scales[:, groups] * (codes - zeros[:, groups]).half()
    return codes, scales, zeros, values


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def auto_gptq(folder):
    return load(folder / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py", "qlinear_cuda").QuantLinear


def auto_awq(folder):
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    for name in ("packing_utils", "module", "utils"):
        load(folder / f"awq/utils/{name}.py", f"awq.utils.{name}")
    return (load(folder / "awq/modules/linear/gemm.py", "awq.modules.linear.gemm").WQLinear_GEMM,
            sys.modules["awq.utils.packing_utils"].dequantize_gemm)


def check_gptq(QuantLinear, values, scales, zeros, groups, group_size, planes, second_version):
    linear = torch.nn.Linear(values.shape[1], values.shape[0], bias=False, dtype=torch.float16)
    linear.weight.data = values
    theirs = QuantLinear(4, group_size, values.shape[1], values.shape[0], bias=False)
    theirs.pack(linear, scales.float(), zeros, groups)
    for plane in ("qweight", "scales", "g_idx"):
        assert torch.equal(getattr(theirs, plane), planes[plane]), plane
    one = 0x11111111 if second_version else 0
    assert torch.equal(theirs.qzeros + one, planes["qzeros"])
    assert torch.equal(theirs(torch.eye(values.shape[1], dtype=torch.float16)).T, values)


def check_awq(modules, values, scales, zeros, planes):
    gemm, dequantize = modules
    linear = torch.nn.Linear(values.shape[1], values.shape[0], bias=False, dtype=torch.float16)
    linear.weight.data = values
    theirs = gemm.from_linear(linear, 4, 16, scales=scales.T.contiguous(), zeros=zeros.half().T.contiguous())
    for plane in ("qweight", "qzeros", "scales"):
        assert torch.equal(getattr(theirs, plane), planes[plane]), plane
    assert torch.equal(dequantize(planes["qweight"], planes["qzeros"], planes["scales"], 4, 16).T, values)


def planes_of(kind, codes, scales, zeros, groups):
    codes, zeros = codes.numpy().astype(np.uint32), zeros.numpy().astype(np.uint32)
    planes = {"scales": scales.T.contiguous()}
    if kind == "llama_awq":
        planes["qweight"] = in_words(interleaved(codes.T), 1)
        planes["qzeros"] = in_words(interleaved(zeros.T), 1)
        return planes
    planes["qweight"] = in_words(codes.T, 0)
    planes["qzeros"] = in_words(zeros.T - (0 if kind == "llama_gptq_v2" else 1), 1)
    planes["g_idx"] = groups.int()
    return planes


SETTINGS = {
    "llama_gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": False},
    "llama_gptq_v2": {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False, "sym": True,
                      "checkpoint_format": "gptq_v2"},
    "llama_awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"},
}


def write(kind, base, config, gptq, awq):
    torch.manual_seed(len(kind))
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(base)
    settings, tensors, expected = SETTINGS[kind], {}, {}
    for name, weight in base.items():
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        size = settings["group_size"] if settings["group_size"] > 0 else weight.shape[1]
        groups = torch.arange(weight.shape[1]) // size
        if settings.get("desc_act"):
            groups = groups[torch.randperm(weight.shape[1])]
        codes, scales, zeros, values = quantized(weight, groups, settings.get("sym", False))
        planes, module = planes_of(kind, codes, scales, zeros, groups), name.removesuffix("weight")
        if kind != "llama_awq":
            check_gptq(gptq, values, scales, zeros, groups.int(), size, planes, kind == "llama_gptq_v2")
        if kind == "llama_gptq":
            planes["bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
        if kind == "llama_awq":
            check_awq(awq, values, scales, zeros, planes)
        tensors |= {module + plane: value for plane, value in planes.items()}
        model.state_dict()[name].copy_(values.float())
        if ".1." in name and ("k_proj" in name or "down_proj" in name):
            expected["dequantized." + name] = values.float().contiguous()
    folder = HERE / kind
    shutil.rmtree(folder, ignore_errors=True)
    config.save_pretrained(folder)
    document = json.loads((folder / "config.json").read_text())
    document["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(expected, folder / "expected.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        logits = model.eval()(torch.tensor([IDS])).logits[0].log_softmax(-1)
    row = {"input_ids": IDS, "logprobs": [float(logits[t, IDS[t + 1]]) for t in range(len(IDS) - 1)]}
    (folder / "expected.json").write_text(json.dumps(row) + "\n")
    print(kind, len(tensors), "tensors")


if __name__ == "__main__":
    config = transformers.LlamaConfig(vocab_size=41, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
                                      initializer_range=0.3, dtype="float32", bos_token_id=1, eos_token_id=2)
    torch.manual_seed(51)
    plain = transformers.LlamaForCausalLM(config)
    plain = {name: value.clone() for name, value in plain.state_dict().items()}
    modules = auto_gptq(pathlib.Path(sys.argv[1])), auto_awq(pathlib.Path(sys.argv[2]))
    for kind in SETTINGS:
        write(kind, plain, config, *modules)
