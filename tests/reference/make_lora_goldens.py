"""Writes lora/<case>.h5: what PEFT makes of adapters of the models in models/*.h5. See README.md for the layout.

    python make_lora_goldens.py [CASE...]

Adapters start at random values, B too, so that every gradient shows. Dropout is off. The optimizer is that of
make_model_goldens.py, for LoRA+ as PEFT's create_loraplus_optimizer makes it.
"""

import json
import pathlib
import sys
import warnings

import h5py
import numpy as np
import peft
import peft.optimizers
import torch
import transformers

import hugging_face
from make_model_goldens import (BETAS, CASES, EPSILON, GRADIENT_BITS, LEARNING_RATE, LOSSES_AGREE, MAX_NORM, STEPS,
                                WEIGHT_DECAY, mean_loss, relative, rounded)

HERE = pathlib.Path(__file__).parent
RATIO = 4.0  # of LoRA+

attention, mlp = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]

# name: (model, settings of LoraConfig, with LoRA+)
LORA = {
    "qv": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]), False),
    "dora_rslora": ("llama_gqa", dict(r=3, lora_alpha=4, target_modules="all-linear", use_dora=True, use_rslora=True),
                    False),
    "gpt2_attention": ("gpt2_packed", dict(r=4, lora_alpha=6, target_modules=["c_attn"], fan_in_fan_out=True), False),
    "gpt2_dora": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True,
                               use_dora=True), False),
    "phi3_fused": ("phi3", dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "gate_up_proj", "down_proj"]), False),
    "neox_fused": ("gpt_neox", dict(r=3, lora_alpha=6, target_modules=["query_key_value", "dense", "dense_h_to_4h"]),
                   False),
    "falcon_dora": ("falcon_packed", dict(r=2, lora_alpha=4, target_modules="all-linear", use_dora=True), False),
    "bias_lora_only": ("llama_attention_bias", dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "o_proj"],
                                                    bias="lora_only"), False),
    "part_of_fused": ("llama_qkv_bias", dict(r=2, lora_alpha=4, target_modules=["q_proj", "gate_proj"], use_dora=True,
                                             bias="lora_only", modules_to_save=["k_proj", "up_proj"]), False),
    "gpt2_bias_all": ("gpt2_untied", dict(r=3, lora_alpha=4, target_modules=["c_fc"], use_rslora=True,
                                          fan_in_fan_out=True, bias="all"), False),
    "bias_all": ("llama_qkv_bias", dict(r=2, lora_alpha=4, target_modules=["v_proj"], bias="all"), False),
    "head": ("llama_packed", dict(r=2, lora_alpha=5, target_modules=attention, modules_to_save=["lm_head"]), False),
    "layers": ("llama", dict(r=2, lora_alpha=4, target_modules=["o_proj", "up_proj"], layers_to_transform=[0, 2],
                             layers_pattern="layers"), False),
    "upper_layer": ("qwen3", dict(r=2, lora_alpha=4, target_modules=["k_proj", "gate_proj"], layers_to_transform=[1]),
                    False),
    "lora_plus": ("mistral", dict(r=2, lora_alpha=4, target_modules=attention), True),
    "gemma2": ("gemma2_packed", dict(r=2, lora_alpha=4, target_modules=attention + mlp, use_dora=True), False),
    "tables": ("llama_packed", dict(r=2, lora_alpha=5, target_modules=["q_proj", "lm_head", "embed_tokens"]), False),
    "head_dora": ("llama_gqa", dict(r=3, lora_alpha=4, target_modules=["lm_head", "v_proj"], use_dora=True,
                                    use_rslora=True), False),
    "tied_tables": ("gpt2_packed", dict(r=2, lora_alpha=4, target_modules=["c_attn", "wte", "wpe", "lm_head"],
                                        fan_in_fan_out=True), False),
    "scaled_table": ("gemma2_packed", dict(r=2, lora_alpha=4, target_modules=["o_proj", "embed_tokens"]), False),
    "tied_apart": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True,
                                modules_to_save=["wte", "lm_head"]), False),
}


def outer_name(name):
    """A parameter of the PEFT model as files name it: adapters as PEFT's, others as the base model's."""
    name = name.replace(".default", "").replace(".modules_to_save", "").replace(".base_layer", "")
    if "lora_" in name:
        return name.removesuffix(".weight") if "magnitude" in name else name
    return name.removeprefix("base_model.model.")


def quantised(value):
    return np.round(value * 2**12) / 2**12


def adapted(model_case, s, parameters, settings):
    """The model with adapters of random values, in evaluation mode."""
    base = hugging_face.build(s)
    mapped = hugging_face.parameter_map(s, parameters)
    base.load_state_dict({n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in mapped.items()}, strict=False)
    hugging_face.check_complete(base, s, parameters)
    model = peft.get_peft_model(base, peft.LoraConfig(**settings)).eval()
    rng = np.random.default_rng([7, *model_case.encode()])
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "lora_A" in name:
                value = rng.normal(0, p.shape[1] ** -0.5, p.shape)
            elif "lora_embedding_A" in name:
                value = rng.normal(0, 0.05, p.shape)
            elif "lora_embedding_B" in name:
                value = rng.normal(0, 1, p.shape)
            elif "lora_B" in name:
                value = rng.normal(0, 0.2, p.shape)
            elif "magnitude" in name:
                value = p.numpy() * rng.uniform(0.8, 1.25, p.shape)
            else:
                continue
            p.copy_(torch.from_numpy(quantised(value)))
    return model


def run(model, documents):
    if len({len(d) for d in documents}) == 1:
        return model(input_ids=torch.stack(documents), use_cache=False).logits.flatten(0, 1)
    return torch.cat([model(input_ids=d[None], use_cache=False).logits[0] for d in documents])


def optimizer_of(model, with_ratio):
    trained = [p for p in model.parameters() if p.requires_grad]
    if with_ratio:
        return peft.optimizers.create_loraplus_optimizer(
            model, torch.optim.AdamW, lr=LEARNING_RATE, loraplus_lr_ratio=RATIO, loraplus_weight_decay=WEIGHT_DECAY,
            betas=BETAS, eps=EPSILON, foreach=False)
    groups = [{"params": [p for p in trained if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
              {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=LEARNING_RATE, betas=BETAS, eps=EPSILON,
                             foreach=False)


def train(model, documents, targets, with_ratio):
    """Gradients of the first step, losses before each of ten steps and after the last, norms before clipping."""
    trained = {outer_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = optimizer_of(model, with_ratio)
    losses, norms, gradients = [], [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(run(model, documents), targets)
        loss.backward()
        if gradients is None:
            gradients = {n: p.grad.clone() for n, p in trained.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), MAX_NORM, foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    with torch.no_grad():
        losses.append(mean_loss(run(model, documents), targets).item())
    return gradients, losses, norms, {n: p.detach().clone() for n, p in trained.items()}


def build(model_case, settings, with_ratio, base_loss_differs=False):
    s = CASES[model_case][0]
    with h5py.File(HERE / f"models/{model_case}.h5") as f:
        parameters = {name: np.array(f["params"][name]) for name in f["params"]}
        ids, targets, segments = (torch.from_numpy(np.array(f[k])).long() for k in ("ids", "targets", "segments"))
        base_loss = f["loss"][()]
    documents = [ids[a:b] for a, b in zip(segments[:-1], segments[1:])]
    model = adapted(model_case, s, parameters, settings)
    start = {outer_name(n): p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad(), model.disable_adapter():
        without = mean_loss(run(model, documents), targets).item()
    assert base_loss_differs == (abs(without - base_loss) > 1e-5), (without, base_loss)
    gradients, losses, norms, after = train(model, documents, targets, with_ratio)
    exact = train(adapted(model_case, s, parameters, settings).double(), documents, targets, with_ratio)
    errors = {"gradients": max(relative(g, exact[0][n]) for n, g in gradients.items()),
              "losses": max(abs(a - b) / abs(b) for a, b in zip(losses, exact[1])),
              "after": max(relative(v, exact[3][n]) for n, v in after.items())}
    assert errors["losses"] < LOSSES_AGREE and errors["gradients"] < 5e-6, errors
    assert abs(losses[0] - base_loss) > 1e-4 and abs(losses[-1] - losses[0]) > 1e-3, (base_loss, losses)
    layers = {n.removeprefix("base_model.model."): m for n, m in model.named_modules()
              if isinstance(m, peft.tuners.lora.LoraLayer)}
    scales = {m.scaling["default"] for m in layers.values()}
    assert len(scales) == 1
    return dict(model=model_case, settings=settings, ratio=RATIO if with_ratio else 1.0, modules=list(layers),
                scale=scales.pop(), start=start, gradients=gradients, losses=losses, norms=norms, after=after,
                errors=errors)


def write(path, name, r, attributes=None):
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        def put(where, value, dtype=np.float32):
            value = np.ascontiguousarray(np.asarray(value), dtype=dtype)
            small = value.size < 256
            return f.create_dataset(where, data=value, compression=None if small else "gzip",
                                    compression_opts=None if small else 9, shuffle=not small)

        f.attrs["case"] = name
        for key, value in (attributes or {}).items():
            f.attrs[key] = value
        f.attrs["made_by"] = (f"peft {peft.__version__}, torch {torch.__version__.split('+')[0]}, "
                              f"transformers {transformers.__version__}")
        f.attrs["model"] = r["model"]
        f.attrs["settings"] = json.dumps(r["settings"])
        f.attrs["modules"] = "\n".join(r["modules"])
        f.attrs["rank"] = np.int64(r["settings"]["r"])
        f.attrs["scale"] = r["scale"]
        f.attrs["dora"] = np.int64(r["settings"].get("use_dora", False))
        f.attrs["learning_rate_ratio"] = r["ratio"]
        f.attrs["zero_gradients"] = ""
        for key, value in r["errors"].items():
            f.attrs[f"fp64_{key}_error"] = value
        put("losses", r["losses"], np.float64)
        put("grad_norms", r["norms"], np.float64)
        for key, value in r["start"].items():
            # An embedding's A is stored by rows of the table.
            turn = (lambda t: t.T.contiguous()) if key.endswith("lora_embedding_A") else (lambda t: t)
            if "lora_" in key:
                put(f"params/{key}", turn(value))
            gradient = put(f"grads/{key}", rounded(turn(r["gradients"][key]), GRADIENT_BITS))
            gradient.attrs["norm"] = r["gradients"][key].double().norm().item()
            put(f"after/{key}", rounded(turn(r["after"][key]), GRADIENT_BITS))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or LORA:
        r = build(*LORA[name])
        path = HERE / f"lora/{name}.h5"
        write(path, name, r)
        facts = {k: f"{v:.1e}" for k, v in r["errors"].items()}
        print(f"{name}: {path.stat().st_size / 1000:.0f} kB, {len(r['modules'])} modules, loss {r['losses'][0]:.4f} -> "
              f"{r['losses'][-1]:.4f}, norms {min(r['norms']):.2f} to {max(r['norms']):.2f}, {facts}")


if __name__ == "__main__":
    main()
