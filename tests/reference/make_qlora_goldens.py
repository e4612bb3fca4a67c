"""Writes qlora/<case>.h5: adapters of PEFT over the matrices that bitsandbytes' 4-bit storage makes of the models in
models/*.h5. The layout is that of lora/*.h5; attributes name the storage.

    python make_qlora_goldens.py [CASE...]

Matrices of the layers, not embedding and head, are replaced by their dequantised values. Codes are those of the nearest
level, as bitsandbytes' GPU kernels choose them; its own CPU functions are the check, since they differ only where two
levels are nearly equally near.
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

# name: (adapters of make_lora_goldens, type, block, doubly quantised)
CASES = {
    "nf4": ("qv", "nf4", 64, False),
    "nf4_double": ("dora_rslora", "nf4", 64, True),
    "fp4": ("gpt2_attention", "fp4", 128, False),
    "fp4_double": ("phi3_fused", "fp4", 32, True),
}


def nearest(levels, values):
    return torch.argmin((levels[None, :] - values[:, None]).abs(), dim=1)


def dequantised(value, kind, block, double):
    """fp32 values of the levels nearest to the elements over the largest magnitude of their block."""
    flat = torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32)).flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
    scales = blocks.abs().amax(1)
    levels = bnb.get_4bit_type(kind, device="cpu")
    if kind == "fp4":  # of two levels that are equally near, the one nearer to zero
        levels = levels[torch.argsort(levels.abs(), stable=True)]
    codes = torch.stack([nearest(levels, row * (1 / scale)) for row, scale in zip(blocks, scales)])
    if double:
        offset, levels_of_scales = scales.mean(), bnb.create_dynamic_map(signed=True)
        shifted = torch.nn.functional.pad(scales - offset, (0, -len(scales) % 256)).reshape(-1, 256)
        largest = shifted.abs().amax(1, keepdim=True)
        nested = torch.stack([nearest(levels_of_scales, row * (1 / m)) for row, m in zip(shifted, largest)])
        scales = (levels_of_scales[nested] * largest).flatten()[: len(scales)] + offset
    result = levels[codes] * scales[:, None]
    # In rows of blocks: its CPU function takes the first scale for all of a row that is no multiple of a block.
    theirs = bnb.dequantize_4bit(*bnb.quantize_4bit(blocks, blocksize=block, quant_type=kind,
                                                    compress_statistics=double))
    different = ((result - theirs).abs() > 0.02 * blocks.abs().max()).float().mean().item()
    assert different < 0.002, (different, kind)
    return result.flatten()[: len(flat)].reshape(value.shape).numpy()


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
