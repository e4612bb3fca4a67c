"""Writes qlora/<case>.h5: adapters of PEFT over the matrices that bitsandbytes' 4-bit storage makes of the models in
models/*.h5. The layout is that of lora/*.h5; attributes name the storage.

    python make_qlora_goldens.py [CASE...]

Matrices of the layers, not embedding and head, are replaced by their dequantised values: those of bitsandbytes' GPU
kernels, which quantization/make_codes.py states and compares with its CPU functions.
"""

import pathlib
import sys
import warnings

import bitsandbytes
import bitsandbytes.functional as bnb
import numpy as np
import torch

import make_lora_goldens as lora

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "quantization"))
import make_codes  # noqa: E402

# name: (adapters of make_lora_goldens, type, block, doubly quantised)
CASES = {
    "nf4": ("qv", "nf4", 64, False),
    "nf4_double": ("dora_rslora", "nf4", 64, True),
    "fp4": ("gpt2_attention", "fp4", 128, False),
    "fp4_double": ("phi3_fused", "fp4", 32, True),
}


def dequantised(value, kind, block, double):
    """Values of the codes that make_codes.py states."""
    codes, scales, _ = make_codes.statement(kind, value.ravel(), block)
    if double:
        scales = make_codes.nested(scales)["scales"]
    levels = bnb.get_4bit_type(kind, device="cpu").numpy()
    return (levels[codes] * np.repeat(scales, block)[: value.size]).reshape(value.shape)


def build(name):
    adapters, kind, block, double = CASES[name]
    model_case, settings, ratio = lora.LORA[adapters]
    original = lora.adapted

    def adapted(case, s, parameters, settings):
        matrices = {n: dequantised(v, kind, block, double) for n, v in parameters.items()
                    if v.ndim == 2 and "embed" not in n and "lm_head" not in n and "wte" not in n and "wpe" not in n}
        assert matrices
        return original(case, s, {**parameters, **matrices}, settings)

    lora.adapted = adapted
    try:
        return lora.build(model_case, settings, ratio, base_loss_differs=True)
    finally:
        lora.adapted = original


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")
    (HERE / "qlora").mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        r = build(name)
        _, kind, block, double = CASES[name]
        path = HERE / f"qlora/{name}.h5"
        lora.write(path, name, r, dict(type=kind, block_size=np.int64(block), double=np.int64(double),
                                       bitsandbytes=bitsandbytes.__version__))
        print(f"{name}: {path.stat().st_size / 1000:.0f} kB, loss {r['losses'][0]:.4f} -> {r['losses'][-1]:.4f}")


if __name__ == "__main__":
    main()
