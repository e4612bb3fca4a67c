"""Writes freeze/goldens.json: what PyTorch makes of the models in models/*.h5 where only a part is trained.

    python make_freeze_goldens.py [LLAMAFACTORY]

The trained parameters are those that LLaMA-Factory's freeze tuning chooses. LLAMAFACTORY, a folder with its package
(version 0.9.5, whose wheel unpacks without its dependencies), confirms them with its own function.
"""

import ast
import json
import logging
import pathlib
import re
import sys
import types

import h5py
import numpy as np
import torch
import transformers

import decoder
import hugging_face
from make_model_goldens import (BETAS, CASES, EPSILON, LEARNING_RATE, LOSSES_AGREE, MAX_NORM, STEPS, WEIGHT_DECAY,
                                mean_loss)

HERE = pathlib.Path(__file__).parent

# name: (model, trainable_layers, trainable_modules, extra_modules, llama_pro)
FREEZE = {
    "last": ("llama", 1, ["all"], [], False),
    "first_two_mlp": ("llama", -2, ["mlp"], [], False),
    "attention_and_head": ("llama", 2, ["self_attn"], ["lm_head"], False),
    "norms": ("llama_packed", 1, ["input_layernorm", "post_attention_layernorm"], ["norm"], False),
    "embedding": ("llama_gqa", 1, ["mlp"], ["embed_tokens"], False),
    "tied": ("llama_tied", 1, ["mlp"], ["embed_tokens"], False),
    "head_alone": ("llama", 0, ["all"], ["lm_head"], False),
    "pro": ("gemma2", 1, ["all"], [], True),
    "gemma_after_mlp": ("gemma2_packed", 2, ["post_feedforward_layernorm", "self_attn"], [], False),
    "query_norms": ("qwen3_packed", -1, ["self_attn"], [], False),
    "positions": ("gpt2_packed", -1, ["attn"], ["wpe"], False),
    "biases": ("gpt2", 1, ["mlp", "ln_2"], ["ln_f"], False),
    "post_norm": ("gpt2_post_norm", 1, ["ln_1", "mlp"], [], False),
    "fused": ("phi3", 1, ["mlp"], [], False),
    "attention_bias": ("llama_attention_bias", 1, ["self_attn"], [], False),
}


def layers_of(count, n, pro):
    if pro:
        return set(range(count // n - 1, count, count // n))
    return set(range(count - n, count)) if n > 0 else set(range(-n))


def chosen(names, count, n, modules, extra, pro):
    layers, out = layers_of(count, n, pro), []
    for name in names:
        inside = re.search(r"\.(\d+)\.(.*)", name)
        if inside:
            first = inside[2].split(".")[0]
            trained = int(inside[1]) in layers and (modules == ["all"] or first in modules)
        else:
            trained = name.split(".")[-2] in extra
        if trained:
            out.append(name)
    return sorted(out)


def chosen_by_llamafactory(folder, s, names, n, modules, extra, pro):
    """Runs its function on parameters of these names."""
    source = (pathlib.Path(folder) / "llamafactory/model/adapter.py").read_text()
    function = next(f for f in ast.parse(source).body if getattr(f, "name", "") == "_setup_freeze_tuning")
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    logger = types.SimpleNamespace(info_rank0=logging.debug)
    scope = {"re": re, "torch": torch, "logger": logger, "get_forbidden_modules": lambda *_: set(),
             "COMPOSITE_MODELS": {}}
    exec(compile(ast.Module([function], []), "adapter.py", "exec"), scope)
    parameters = {name: torch.zeros(1, requires_grad=True) for name in names}
    model = types.SimpleNamespace(config=types.SimpleNamespace(num_hidden_layers=s.n_layers),
                                  named_parameters=parameters.items)
    arguments = types.SimpleNamespace(use_llama_pro=pro, freeze_trainable_layers=n, freeze_trainable_modules=modules,
                                      freeze_extra_modules=extra, freeze_multi_modal_projector=True)
    scope["_setup_freeze_tuning"](model, arguments, True, False)
    return sorted(name for name, p in parameters.items() if p.requires_grad)


def train(parameters, names, run, targets, dtype):
    p = {n: torch.tensor(v, dtype=dtype, requires_grad=n in names) for n, v in parameters.items()}
    trained = [p[n] for n in names]
    groups = [{"params": [v for v in trained if v.ndim >= 2], "weight_decay": WEIGHT_DECAY},
              {"params": [v for v in trained if v.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=LEARNING_RATE, betas=BETAS, eps=EPSILON,
                                  foreach=False)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(run(p), targets)
        loss.backward()
        assert all((v.grad is not None) == (n in names) for n, v in p.items())
        norms.append(torch.nn.utils.clip_grad_norm_(trained, MAX_NORM, foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    with torch.no_grad():
        losses.append(mean_loss(run(p), targets).item())
    return losses, norms


def build(model_case, n, modules, extra, pro, folder):
    s = CASES[model_case][0]
    with h5py.File(HERE / f"models/{model_case}.h5") as f:
        parameters = {name: np.array(f["params"][name]) for name in f["params"]}
        ids, targets, segments = (torch.from_numpy(np.array(f[k])).long() for k in ("ids", "targets", "segments"))
    documents = [ids[a:b] for a, b in zip(segments[:-1], segments[1:])]
    names = chosen(parameters, s.n_layers, n, modules, extra, pro)
    if folder and extra != ["norm"]:  # LLaMA-Factory also finds it in the names of other norms
        theirs = chosen_by_llamafactory(folder, s, parameters, n, modules, extra, pro)
        assert names == theirs, (names, theirs)
    model = hugging_face.build(s)
    own = lambda p: torch.cat([decoder.decode(p, s, d) for d in documents])
    run = own if model is None else lambda p: hugging_face.decode(model, s, p, documents)
    losses, norms = train(parameters, names, run, targets, torch.float32)
    exact, _ = train(parameters, names, own, targets, torch.float64)
    difference = max(abs(a - b) / abs(b) for a, b in zip(losses, exact))
    assert difference < LOSSES_AGREE, difference
    return {"model": model_case, "trainable_layers": n, "trainable_modules": modules, "extra_modules": extra or ["none"],
            "llama_pro": pro, "trained": names, "losses": losses, "grad_norms": norms}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    out = {"made_by": f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"}
    for name, case in FREEZE.items():
        out[name] = build(*case, folder)
        print(name, len(out[name]["trained"]), out[name]["losses"][0], out[name]["losses"][-1], max(out[name]["grad_norms"]))
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items())
    (HERE / "freeze/goldens.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
