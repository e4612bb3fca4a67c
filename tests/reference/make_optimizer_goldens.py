"""Parameters after ten steps of each optimizer of its library on given gradients, for tests/train/optimizers_mpi_test.cpp.

Writes optimizers/goldens.txt: per case a line
    case name
then one line per tensor with every n-th element of its final value as hexadecimal floats (n = elements // 24 + 1).
SGD, AdamW and Muon are torch's, Lion is lion-pytorch's (bitsandbytes' gives the same, which is checked), Adafactor is
Transformers'. 8-bit AdamW: bitsandbytes 0.50.2 on the CPU quantises its states otherwise than on a GPU (a zero does not
stay zero) and decays before the step; its numbers are the case adamw_8bit_cpu. The case adamw_8bit is the order of its GPU
kernel, written out below with its maps. Made with torch 2.15.0, transformers 5.24.0, lion-pytorch 0.2.5, bitsandbytes
0.50.2, Python 3.11; a second run writes the same bytes.
"""
import pathlib

import bitsandbytes
import lion_pytorch
import torch
from bitsandbytes.functional import create_dynamic_map
from transformers.optimization import Adafactor

STEPS = 10
# (shape, weight decay applies, a hidden matrix)
TENSORS = [((40, 32), True, False), ((64, 96), True, True), ((16, 96), True, True), ((16, 96), True, True),
           ((96, 64), True, True), ((37, 131), True, True), ((96,), False, False), ((5000,), False, False),
           ((40, 32), True, False)]
RATE = 0.01


def elements(shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int64)


def initial(k, shape):
    return (((elements(shape) * 7 + k * 13) % 129 - 64).double() / 256).float().reshape(shape)


def gradient(t, k, shape):
    i = elements(shape)
    value = (i * (2 * t + 3) + i // 7 * 5 + k * 11 + t * 29) % 255 - 127
    return ((value * torch.where(i % 5 == 0, 4, 1)).double() / 2048).float().reshape(shape)


def run(make):
    """make(decayed, plain, hidden): optimizers of these parameters; hidden ones are in decayed too."""
    params = [torch.nn.Parameter(initial(k, shape)) for k, (shape, _, _) in enumerate(TENSORS)]
    groups = [[p for p, (_, decays, _) in zip(params, TENSORS) if decays],
              [p for p, (_, decays, _) in zip(params, TENSORS) if not decays],
              [p for p, (_, _, hidden) in zip(params, TENSORS) if hidden]]
    optimizers = make(*groups)
    for t in range(1, STEPS + 1):
        for k, p in enumerate(params):
            p.grad = gradient(t, k, TENSORS[k][0])
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach() for p in params]


def whole(cls, decay, **options):
    return run(lambda decayed, plain, _: [cls([{"params": decayed, "weight_decay": decay},
                                               {"params": plain, "weight_decay": 0.0}], lr=RATE, **options)])


def muon(decay, **options):
    def make(decayed, plain, hidden):
        rest = [p for p in decayed if not any(p is h for h in hidden)]
        return [torch.optim.Muon(hidden, lr=RATE, weight_decay=decay, **options),
                torch.optim.AdamW([{"params": rest, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}],
                                  lr=RATE, foreach=False)]
    return run(make)


def adafactor(decay, relative=False, **options):
    return run(lambda decayed, plain, _: [Adafactor([{"params": decayed, "weight_decay": decay},
                                                     {"params": plain, "weight_decay": 0.0}],
                                                    lr=None if relative else RATE, relative_step=relative, **options)])


class Adamw8bit:
    """Order of bitsandbytes' kernel for GPUs (kOptimizerStatic8bit2StateBlockwise), in fp32."""

    def __init__(self, groups, lr):
        self.groups, self.rate, self.step_count, self.state = groups, lr, 0, {}
        self.maps = [create_dynamic_map(signed=True), create_dynamic_map(signed=False)]

    def code(self, x, table):
        upper = torch.searchsorted(table, x).clamp(max=255)
        lower = (upper - 1).clamp(min=0)
        return torch.where(x > (table[lower] + table[upper]) * 0.5, upper, lower)

    def step(self, beta1=0.9, beta2=0.999, epsilon=1e-8):
        self.step_count += 1
        correction1, correction2 = 1 - beta1**self.step_count, (1 - beta2**self.step_count) ** 0.5
        for group in self.groups:
            for p in group["params"]:
                self.update(p.data.view(-1), p.grad.view(-1), group["weight_decay"], beta1, beta2, epsilon, correction1,
                            correction2)

    def update(self, p, g, decay, beta1, beta2, epsilon, correction1, correction2):
        n = p.numel()
        small, blocks = n < 4096, (n + 255) // 256
        m, v = self.state.setdefault(p.data_ptr(), [torch.zeros(n), torch.zeros(n)])
        if small:  # as adamw
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.mul_(1 - self.rate * decay)
            p.addcdiv_(m, (v.sqrt() / correction2).add_(epsilon), value=-self.rate / correction1)
            return
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).add_(g * g, alpha=1 - beta2)
        p.add_(m / (v.sqrt() + correction2 * epsilon), alpha=-self.rate * correction2 / correction1)
        p.mul_(1 - self.rate * decay)
        for state, table, signed in ((m, self.maps[0], True), (v, self.maps[1], False)):
            for b in range(blocks):
                x = state[b * 256:(b + 1) * 256]
                largest = x.abs().max()
                code = self.code(x / largest, table)
                if signed:
                    wrong = torch.signbit(table[code]) != torch.signbit(x)
                    code = torch.where(wrong, torch.where(x > 0, code + 1, code - 1), code)
                x.copy_(table[code] * largest)


def main():
    cases = {
        "sgd": whole(torch.optim.SGD, 0.1, foreach=False),
        "sgd_momentum": whole(torch.optim.SGD, 0.1, momentum=0.9, foreach=False),
        "sgd_nesterov": whole(torch.optim.SGD, 0.0, momentum=0.9, nesterov=True, foreach=False),
        "lion": whole(lion_pytorch.Lion, 0.1, betas=(0.9, 0.99)),
        "adamw": whole(torch.optim.AdamW, 0.1, foreach=False),
        "adamw_8bit": run(lambda decayed, plain, _: [Adamw8bit([{"params": decayed, "weight_decay": 0.1},
                                                                {"params": plain, "weight_decay": 0.0}], RATE)]),
        "adamw_8bit_cpu": whole(bitsandbytes.optim.AdamW8bit, 0.1),
        "adafactor": adafactor(0.1, scale_parameter=False),
        "adafactor_relative": adafactor(0.0, relative=True, scale_parameter=True),
        "adafactor_beta1": adafactor(0.0, scale_parameter=False, beta1=0.9, clip_threshold=0.5),
        "muon": muon(0.1),
        "muon_rms": muon(0.1, nesterov=False, adjust_lr_fn="match_rms_adamw"),
    }
    other = whole(bitsandbytes.optim.Lion, 0.1, betas=(0.9, 0.99))
    distance = max((a - b).abs().max().item() for a, b in zip(cases["lion"], other))
    assert distance < 1e-6, distance
    lines = []
    for name, tensors in cases.items():
        lines.append(f"case {name}")
        for tensor in tensors:
            sampled = tensor.reshape(-1)[::tensor.numel() // 24 + 1]
            lines.append(" ".join(float(x).hex() for x in sampled))
    path = pathlib.Path(__file__).parent / "optimizers" / "goldens.txt"
    path.write_text("\n".join(lines) + "\n")
    near = torch.cat([(a - b).abs().reshape(-1) for a, b in zip(cases["adamw_8bit"], cases["adamw_8bit_cpu"])])
    print("adamw_8bit beside the CPU's: median", near.median().item(), "largest", near.max().item())


if __name__ == "__main__":
    main()
