"""Codes, scales and dequantised values of nf4, fp4, nested scales and int8 rows, for tests/hf/quantize_test.cpp.

Writes codes.safetensors. Codes are those of bitsandbytes' CUDA kernels, stated below in numpy: the pivots of their
decision trees (csrc/kernels.cu) over value * (1 / absmax). The script compares them with bitsandbytes' CPU code, which
may differ in three places: ties of negative fp4 values, the sign of an fp4 zero, and the last block where it is short
(divided by absmax instead of multiplied by its inverse). Scales and dequantised values are bitsandbytes' own.
Made with torch 2.15.0, bitsandbytes 0.50.2, numpy 2.4.6, Python 3.11; a second run writes the same bytes.
"""
import pathlib

import bitsandbytes.functional as bnb
import numpy as np
import torch
from safetensors.torch import save_file

NF4_PIVOTS = np.array([
    -0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544, -0.23460740596055984,
    -0.13791173323988914, -0.045525018125772476, 0.03979014977812767, 0.1202552504837513, 0.2035212516784668,
    0.2920137718319893, 0.3893125355243683, 0.5016634166240692, 0.6427869200706482, 0.8614784181118011], np.float32)
FP4_PIVOTS = np.array([0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333], np.float32)
FP4_CODES = np.array([0, 1, 6, 7, 4, 5, 2, 3], np.uint8)  # of magnitudes in ascending order


def statement(kind, values, block):
    """CUDA's codes: one a byte, and scales."""
    padded = np.zeros(-(-values.size // block) * block, np.float32)
    padded[:values.size] = values
    absmax = np.abs(padded.reshape(-1, block)).max(1)
    inverse = np.float32(1) / np.maximum(absmax, np.float32(1e-38))
    x = (padded.reshape(-1, block) * inverse[:, None]).reshape(-1)[:values.size]
    if kind == "nf4":
        return (x[:, None] > NF4_PIVOTS).sum(1).astype(np.uint8), absmax, x
    codes = FP4_CODES[(np.abs(x)[:, None] > FP4_PIVOTS).sum(1)]
    return codes | np.where(x < 0, 8, 0).astype(np.uint8), absmax, x


def packed(kind, codes):
    zero = 7 if kind == "nf4" else 0
    even = np.append(codes, np.full(codes.size % 2, zero, np.uint8))
    return (even[0::2] << 4 | even[1::2]).astype(np.uint8)


def nearest_8bit(levels, x):
    """dQuantize of csrc/kernels.cu: the search ends at an even code; a value halfway goes to it."""
    low = np.clip(np.searchsorted(levels, x, side="right") - 1, 0, 254)
    middle = ((levels[low] + levels[low + 1]) * np.float32(0.5)).astype(np.float32)
    return np.where((x > middle) | ((x == middle) & (low % 2 == 1)), low + 1, low).astype(np.uint8)


def nested(scales):
    offset = np.float32(scales.astype(np.float64).mean())
    rest = scales - offset
    padded = np.zeros(-(-rest.size // 256) * 256, np.float32)
    padded[:rest.size] = rest
    absmax = np.abs(padded.reshape(-1, 256)).max(1)
    inverse = np.float32(1) / np.maximum(absmax, np.float32(1e-38))
    x = (padded.reshape(-1, 256) * inverse[:, None]).reshape(-1)[:rest.size]
    levels = bnb.create_dynamic_map(True).numpy()
    codes = nearest_8bit(levels, x)
    cpu_codes, cpu = bnb.quantize_blockwise(torch.from_numpy(rest), blocksize=256)
    assert np.array_equal(cpu.absmax.numpy(), absmax)
    assert np.abs(cpu_codes.numpy().astype(int) - codes.astype(int)).max() <= 1
    assert abs(float(torch.from_numpy(scales).mean()) - offset) <= np.spacing(offset)
    state = bnb.QuantState(absmax=torch.from_numpy(absmax), code=torch.from_numpy(levels), blocksize=256,
                           dtype=torch.float32)
    back = bnb.dequantize_blockwise(torch.from_numpy(codes), state) + torch.tensor(offset)
    return {"codes": codes, "absmax": absmax, "offset": np.array([offset]), "scales": back.numpy()}


def values_of_the_test():
    random = np.random.default_rng(1)
    values = random.standard_normal(1024 * 5 + 130).astype(np.float32) * 0.02
    values[512:768] = 0                       # blocks of zeros
    values[768] = 3                           # an outlier
    values[1024:1280] *= np.float32(1e-38)    # denormal numbers alone
    values[1280:1536] *= np.float32(1e-30)
    # Every pivot, its neighbours and its negative, in a block whose scale is 1.
    pivots = np.concatenate([NF4_PIVOTS, FP4_PIVOTS])
    around = np.concatenate([pivots, np.nextafter(pivots, np.float32(2)), np.nextafter(pivots, np.float32(-2))])
    around = np.concatenate([np.float32([1]), around, -around])
    values[1536:1536 + around.size] = around
    for start in range(1536, 1792, 32):
        values[start] = 1
    return values


def main():
    out = {}
    values = values_of_the_test()
    out["values"] = values
    differences = 0
    for kind in ("nf4", "fp4"):
        for block in (32, 64, 128, 256):
            codes, absmax, x = statement(kind, values, block)
            cpu, state = bnb.quantize_4bit(torch.from_numpy(values), blocksize=block, quant_type=kind)
            cpu = cpu.numpy().reshape(-1)
            cpu = np.stack([cpu >> 4, cpu & 15], 1).reshape(-1)[:values.size]
            levels = bnb.get_4bit_type(kind, device="cpu").numpy()
            whole = values.size // block * block
            assert np.array_equal(state.absmax.numpy()[:whole // block], absmax[:whole // block])
            other = levels[cpu] != levels[codes]
            ties = (x < 0) & np.isin(-x, FP4_PIVOTS) if kind == "fp4" else np.zeros(x.size, bool)
            # bitsandbytes' CPU code forms the midpoints itself: fp4 pivots may be a unit in the last place away.
            near = np.abs(np.abs(x)[:, None] - FP4_PIVOTS).min(1) < 1e-6 if kind == "fp4" else ties
            assert not (other & ~(ties | near))[:whole].any(), (kind, block)
            differences += int(other.sum())
            bytes_ = packed(kind, codes)
            name = f"{kind}.{block}"
            out[name + ".codes"], out[name + ".absmax"] = bytes_, absmax
            for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
                if block != 64:
                    continue
                state = bnb.QuantState(absmax=torch.from_numpy(absmax), shape=torch.Size([values.size]), dtype=dtype,
                                       blocksize=block, quant_type=kind, code=bnb.get_4bit_type(kind, device="cpu"))
                out[f"{name}.{label}"] = bnb.dequantize_4bit(torch.from_numpy(bytes_).reshape(-1, 1), state).reshape(-1)
        out[f"{kind}.levels"] = bnb.get_4bit_type(kind, device="cpu").numpy()
    print("values that bitsandbytes' CPU code quantises to another level:", differences)
    scales = np.abs(np.random.default_rng(2).standard_normal(256 * 3 + 7)).astype(np.float32) * 0.03 + 0.01
    out["nested.of"] = scales
    out.update({"nested." + k: v for k, v in nested(scales).items()})
    out["map.signed"] = bnb.create_dynamic_map(True).numpy()
    out["map.unsigned"] = bnb.create_dynamic_map(False).numpy()
    rows = np.random.default_rng(3).standard_normal((9, 83)).astype(np.float32) * 0.3
    rows[4] = 0
    rows[5, 7] = 65504
    rows[6] *= np.float32(1e-6)               # subnormal in fp16
    steps = 11 * 2.0**-9                      # a scale of 127 steps: the halves between codes are numbers of fp16
    rows = np.vstack([rows, steps * np.array([np.arange(83) + 0.5, np.arange(83) - 41.5])]).astype(np.float32)
    rows[9:, 0] = 127 * steps
    codes, scb, _ = bnb.int8_vectorwise_quant(torch.from_numpy(rows).half())
    one_division = np.rint(rows[9:].astype(np.float16).astype(np.float32) * (np.float32(127) / scb.numpy()[9:, None]))
    assert (one_division != codes.numpy()[9:]).any()
    codes[4] = 0                              # 0 * infinity: CUDA's conversion gives 0, a processor's any number
    out.update({"rows": rows, "rows.codes": codes, "rows.scb": scb, "rows.back": bnb.int8_vectorwise_dequant(codes, scb)})
    for kind, levels in (("signed", out["map.signed"]), ("unsigned", out["map.unsigned"])):
        middles = ((levels[:-1] + levels[1:]) * np.float32(0.5)).astype(np.float32)
        x = np.unique(np.concatenate([levels, middles, np.nextafter(middles, np.float32(2)),
                                      np.nextafter(middles, np.float32(-2)), np.float32([-1, 2])]))
        out[f"nearest.{kind}.values"], out[f"nearest.{kind}.codes"] = x, nearest_8bit(levels, x)
    tensors = {k: (v if isinstance(v, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(v))).contiguous()
               for k, v in out.items()}
    save_file(tensors, pathlib.Path(__file__).parent / "codes.safetensors")


main()
