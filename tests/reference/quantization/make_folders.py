"""Writes llama_nf4/ and gpt2_int8/: models of ../hf quantised and saved by Transformers with bitsandbytes.

expected.safetensors there: `dequantized.<name>`, the weights of layer 1 that the quantised model computes with, and
`merged.<name>`, what PEFT's merge_and_unload makes of these weights with an adapter of ../adapters (fp32; in the layout
of the model's files, which GPT-2 has transposed).
expected.json: log-probabilities of a row of ids. Those of int8 are of the quantised model; those of nf4 are of the
plain model with the dequantised weights, since bitsandbytes on a processor computes nf4 in bf16 where it can, and
takes wrong scales where the rows of a matrix are no multiple of a block (within 2e-6 elsewhere, bf16 off).

nf4 is dequantised here by its definition, in fp32 (level of the code times scale); where the size of a matrix is a
multiple of the block, the script checks that bitsandbytes' dequantize_4bit gives the same bits.
Made with torch 2.15.0, transformers 5.24.0, bitsandbytes 0.50.2, peft 0.21.2, numpy 2.4.6, Python 3.11.
"""
import json
import pathlib
import shutil

import bitsandbytes.functional as bnb
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
SETTINGS = {
    "llama_nf4": ("llama", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                bnb_4bit_compute_dtype=torch.float32)),
    "gpt2_int8": ("gpt2", dict(load_in_8bit=True, llm_int8_threshold=5.0)),
}

ADAPTERS = {"llama_nf4": "llama_qv", "gpt2_int8": "gpt2_bias"}


def dequantized_nf4(planes, name):
    state = json.loads(bytes(planes[name + ".quant_state.bitsandbytes__nf4"].numpy()))
    levels, nested_levels = planes[name + ".quant_map"].numpy(), planes[name + ".nested_quant_map"].numpy()
    codes = planes[name].numpy().reshape(-1)
    rows, columns = state["shape"]
    codes = np.stack([codes >> 4, codes & 15], 1).reshape(-1)[:rows * columns]
    scale_codes = planes[name + ".absmax"].numpy()
    nested = planes[name + ".nested_absmax"].numpy()
    scales = nested_levels[scale_codes] * nested[np.arange(scale_codes.size) // state["nested_blocksize"]]
    scales = scales + np.float32(state["nested_offset"])
    values = levels[codes] * scales[np.arange(codes.size) // state["blocksize"]]
    assert values.dtype == np.float32
    if codes.size % state["blocksize"] == 0:  # as rows of one block each
        whole = bnb.QuantState(torch.from_numpy(scales), torch.Size([codes.size // 64, 64]), planes[name + ".quant_map"],
                               state["blocksize"], "nf4", torch.float32)
        theirs = bnb.dequantize_4bit(planes[name].reshape(-1, 1), whole).numpy().reshape(-1)
        assert np.array_equal(theirs, values), name
    return torch.from_numpy(values.reshape(rows, columns))


def write(case):
    base, settings = SETTINGS[case]
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True)
    config = transformers.BitsAndBytesConfig(**settings)
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE.parent / "hf" / base, quantization_config=config,
                                                              dtype=torch.float32, device_map="cpu")
    model.save_pretrained(folder)
    planes = load_file(folder / "model.safetensors")
    expected = {}
    if case == "gpt2_int8":
        values = {name: planes[name].float() * planes[name[:-6] + "SCB"][:, None] * np.float32(7.874015718698502e-3)
                  for name in planes if planes[name].dtype == torch.int8}
    else:
        values = {name: dequantized_nf4(planes, name) for name in
                  sorted(name.removesuffix(".quant_map") for name in planes
                         if name.endswith(".quant_map") and not name.endswith("nested_quant_map"))}
    own = {name: value.T if case == "gpt2_int8" else value for name, value in values.items()}  # GPT-2's are transposed
    plain = transformers.AutoModelForCausalLM.from_pretrained(HERE.parent / "hf" / base, dtype=torch.float32)
    assert not plain.load_state_dict(own, strict=False).unexpected_keys
    computed = plain if case == "llama_nf4" else model
    ids = [(7 * t * t + 3 * t + 1) % 41 for t in range(24)]
    with torch.no_grad():
        logits = computed.eval()(torch.tensor([ids])).logits[0].log_softmax(-1)
    row = {"input_ids": ids, "logprobs": [float(logits[t, ids[t + 1]]) for t in range(len(ids) - 1)]}
    (folder / "expected.json").write_text(json.dumps(row) + "\n")
    tuned = peft.PeftModel.from_pretrained(plain, HERE.parent / "adapters" / ADAPTERS[case])
    merged = tuned.merge_and_unload().state_dict()
    for name in values:
        if ".1." in name and not torch.equal(merged[name], own[name]):
            expected["merged." + name] = merged[name].clone().contiguous()
    for name, value in values.items():
        if ".1." in name:
            expected["dequantized." + name] = value.contiguous()
    save_file(expected, folder / "expected.safetensors", metadata={"format": "pt"})
    print(case, len(planes), "tensors,", sorted(expected))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name in SETTINGS:
        write(name)
