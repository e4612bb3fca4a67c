"""Products of bitsandbytes' LLM.int8 for tests/hf/int8_product_test.cpp.

Writes int8_products.safetensors: MatMul8bitLt on a processor, over all rows and over each row by itself, with
thresholds of 0 and 6, in fp32 and fp16, and the gradient of the inputs. Sums of codes are exact (torch._int_mm or fp32).
Made with torch 2.15.0, bitsandbytes 0.50.2, Python 3.11; a second run writes the same bytes.
"""
import pathlib

import bitsandbytes as bnb
import bitsandbytes.functional as functional
import torch
from bitsandbytes.autograd._functions import MatMul8bitLt, MatmulLtState
from safetensors.torch import save_file

ROWS, INPUTS, OUTPUTS = 6, 1100, 7


def product(x, codes, scales, bias, threshold):
    state = MatmulLtState()
    state.CB, state.SCB, state.has_fp16_weights, state.threshold = codes, scales, False, threshold
    return MatMul8bitLt.apply(x, codes, None, bias, state)


def main():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, INPUTS, generator=generator)
    x[1, 5] = 6           # exactly the threshold
    x[2, 5] = 0.5
    x[3, 1050] = -40
    x[4] = 0
    x[5, 7] = 5.998       # rounded to 6 in fp16
    steps = 11 * 2.0**-9   # a scale of 127 steps: the halves between codes are numbers of fp16
    halves = steps * (torch.arange(INPUTS) % 101 - 50.5)
    halves[3] = 127 * steps
    x = torch.cat([x, halves[None]])
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator) * 0.05
    weight[3] = 0
    codes, scales, _ = functional.int8_vectorwise_quant(weight.half())
    codes[3] = 0          # 0 * infinity
    bias = torch.randn(OUTPUTS, generator=generator)
    dy = torch.randn(len(x), OUTPUTS, generator=generator)
    out = {"x": x, "codes": codes, "scales": scales, "bias": bias, "dy": dy}
    for name, dtype in (("f32", torch.float32), ("f16", torch.float16)):
        for threshold in (0, 6):
            label = f"{name}.{threshold}"
            inputs = x.to(dtype, copy=True).requires_grad_()
            y = product(inputs, codes, scales, bias.to(dtype), float(threshold))
            y.backward(dy.to(dtype))
            with torch.no_grad():
                rows = [product(x[i:i + 1].to(dtype, copy=True), codes, scales, bias.to(dtype), float(threshold))
                        for i in range(len(x))]
            out[label + ".y"], out[label + ".rows"] = y.detach(), torch.cat(rows)
            out[label + ".dx"] = inputs.grad
        print(name, "outliers change", (out[name + ".0.y"] - out[name + ".6.y"]).abs().max().item(),
              "rows", (out[name + ".6.rows"] - out[name + ".6.y"]).abs().max().item())
    save_file({k: v.contiguous() for k, v in out.items()}, pathlib.Path(__file__).parent / "int8_products.safetensors")


print(bnb.__version__, torch.__version__)
main()
