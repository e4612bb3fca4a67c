"""Writes models/<case>.h5: what PyTorch makes of tiny random models. See README.md for the layout.

    python make_model_goldens.py [CASE...]
"""

import dataclasses
import pathlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F
import transformers

import decoder
import hugging_face
from shapes import (VOCABULARY, Shape, gemma2, gpt2, llama, mistral, parameter_shapes, phi3, qwen2, qwen3,
                    random_parameters, zero_gradients)

LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, MAX_NORM, STEPS = 1e-3, (0.9, 0.999), 1e-8, 0.1, 1.0, 10
IGNORE = -100
LOSSES_AGREE = 2e-5  # fp32 against fp64, over ten steps: no element sits where Adam magnifies rounding

GRADIENT_BITS = 18  # significant bits kept in the files

# Written where they are not the default, so that older files stay as they are.
OPTIONAL = ("sliding_window_layers", "rope_scaling", "partial_rotary_factor", "sandwich_norm", "zero_centered_norm",
            "qk_norm", "embedding_scale", "query_pre_attn_scalar", "attention_softcap", "final_softcap")

no_bias = dict(bias=False, qkv_bias=False, output_bias=False, mlp_bias=False, norm_bias=False)


def heads(n, kv, size, **changes):
    return dict(n_heads=n, n_kv_heads=kv, head_dim=size, d_ff=52) | changes


g36 = heads(3, 3, 12, d_model=36, max_seq_len=32)  # the small GPT-2
l30 = heads(3, 3, 10, d_model=30)                  # the small Llamas
l36 = heads(6, 2, 6, d_model=36)
tiny = heads(3, 1, 12, d_model=24, d_ff=40)  # the other families
llama3 = "llama3, factor 8, original_max_position_embeddings 32, low_freq_factor 1, high_freq_factor 4"
yarn = "yarn, factor 4, original_max_position_embeddings 32"
yarn_mscale = yarn + ", beta_fast 3, beta_slow 0.5, mscale 1.2, mscale_all_dim 0.7, truncate false"
longrope = "longrope, original_max_position_embeddings 16, short_factor 1.0 1.1 1.2 1.4, long_factor 1.5 2.5 4.0 9.5"
gemma = dict(n_layers=3, query_pre_attn_scalar=20.0, attention_softcap=2.0, final_softcap=3.0, sliding_window=7,
             sliding_window_layers="0, 2", embedding_scale=24.0**0.5)

# name: (shape, lengths of the documents, packed); unpacked documents have a target everywhere
CASES = {
    "gpt2": (gpt2(), [27, 27], False),
    "gpt2_untied": (gpt2(**heads(3, 3, 16), tie_embeddings=False), [24, 24], False),
    "gpt2_no_bias": (gpt2(**g36, **no_bias), [31, 31], False),
    "gpt2_relu": (gpt2(**g36, activation="relu"), [25, 25], False),
    "gpt2_silu": (gpt2(**g36, activation="silu"), [25, 25], False),
    "gpt2_gelu": (gpt2(**g36, activation="gelu", norm_epsilon=1e-3), [25, 25], False),
    "gpt2_post_norm": (gpt2(**g36 | dict(d_model=30, head_dim=10, d_ff=120), pre_norm=False, final_norm=False), [25, 25], False),
    "gpt2_rope": (gpt2(**g36, positions="rope", rope_theta=100.0), [29, 29], False),
    "gpt2_packed": (gpt2(**heads(6, 6, 6, d_model=36)), [17, 40, 9], True),
    "llama": (llama(**l36 | dict(n_kv_heads=6), n_layers=3, norm_epsilon=1e-4), [24, 24, 24], False),
    "llama_gqa": (llama(n_kv_heads=2, d_ff=76), [27, 27], False),
    "llama_mqa": (llama(**l30 | dict(n_kv_heads=1)), [30, 30], False),
    "llama_tied": (llama(**l30, tie_embeddings=True), [27, 27], False),
    "llama_window": (llama(**l30, sliding_window=7), [38, 38], False),
    "llama_head_dim": (llama(**heads(4, 2, 10, d_model=36)), [28, 28], False),
    "llama_geglu": (llama(**l30, activation="geglu"), [25, 25], False),
    "llama_attention_bias": (llama(**l30, qkv_bias=True, output_bias=True), [25, 25], False),
    "llama_qkv_bias": (llama(**l36, qkv_bias=True, rope_theta=1e6), [25, 25], False),
    "llama_packed": (llama(**l36 | dict(n_kv_heads=3)), [11, 37, 22], True),
    "llama_window_packed": (llama(**l36, sliding_window=5), [3, 40, 14, 5], True),
    "llama_linear": (llama(**tiny, rope_scaling="linear, factor 2.5"), [26, 26], False),
    "llama_dynamic": (llama(**tiny, rope_scaling="dynamic, factor 3", max_seq_len=16), [37, 37], False),
    "llama_dynamic_packed": (llama(**tiny, rope_scaling="dynamic, factor 3", max_seq_len=16), [16, 39, 7, 20], True),
    "llama_llama3": (llama(**tiny, rope_scaling=llama3, tie_embeddings=True), [38, 38], False),
    "llama_yarn": (llama(**tiny, rope_scaling=yarn, max_seq_len=128), [38, 38], False),
    "llama_longrope": (llama(**tiny | dict(head_dim=8), rope_scaling=longrope + ", factor 6, attention_factor 1.3"),
                       [24, 24], False),
    "mistral": (mistral(**tiny, sliding_window=9), [30, 30], False),
    "qwen2": (qwen2(**tiny | dict(head_dim=8), tie_embeddings=True), [26, 26], False),
    "qwen2_yarn": (qwen2(**tiny | dict(head_dim=8), rope_scaling=yarn_mscale, rope_theta=1e4), [38, 38], False),
    "qwen2_window_packed": (qwen2(**tiny | dict(head_dim=8), n_layers=3, sliding_window=6, sliding_window_layers="1, 2"),
                            [4, 33, 17], True),
    "qwen3": (qwen3(**tiny), [27, 27], False),
    "qwen3_packed": (qwen3(**heads(4, 2, 10, d_model=24, d_ff=40), tie_embeddings=True, sliding_window=8), [9, 31, 15],
                     True),
    "gemma2": (gemma2(**tiny, **gemma), [27, 27], False),
    "gemma2_packed": (gemma2(**heads(4, 2, 6, d_model=24, d_ff=40), **gemma), [5, 33, 14], True),
    "phi3": (phi3(**tiny | dict(head_dim=8), sliding_window=9, partial_rotary_factor=0.75), [28, 28], False),
    "phi3_longrope": (phi3(**heads(2, 1, 10, d_model=20, d_ff=40), max_seq_len=64, partial_rotary_factor=0.8,
                           rope_scaling=longrope), [13, 30, 16], True),
}


def random_batch(rng, lengths, packed):
    """Documents of ids and targets, both int64; about a tenth is not trained on when packed, and never what would
    come after a document."""
    ids, targets = [], []
    for n in lengths:
        tokens = rng.integers(0, VOCABULARY, n + 1)
        target = tokens[1:].copy()
        if packed:
            target[rng.random(n) < 0.1] = IGNORE
            target[: n // 5] = IGNORE  # a prompt
            target[-1] = IGNORE
        ids.append(torch.from_numpy(tokens[:-1]))
        targets.append(torch.from_numpy(target))
    return ids, torch.cat(targets)


def mean_loss(logits, targets):
    """Sum of the token losses over the number of trained tokens."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum") / (targets != IGNORE).sum()


def leaves(parameters, dtype=torch.float32):
    return {n: torch.tensor(v, dtype=dtype, requires_grad=True) for n, v in parameters.items()}


def first_pass(parameters, run, targets, dtype=torch.float32):
    p = leaves(parameters, dtype)
    logits = run(p)
    loss = mean_loss(logits, targets)
    loss.backward()
    return logits.detach(), loss.item(), {n: v.grad for n, v in p.items()}


def train(parameters, run, targets, dtype=torch.float32):
    """Losses before each of ten AdamW steps and after the last, norms before clipping, final parameters."""
    p = leaves(parameters, dtype)
    groups = [{"params": [v for v in p.values() if v.ndim >= 2], "weight_decay": WEIGHT_DECAY},
              {"params": [v for v in p.values() if v.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, foreach=False)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(run(p), targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), MAX_NORM, foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    with torch.no_grad():
        losses.append(mean_loss(run(p), targets).item())
    return losses, norms, {n: v.detach() for n, v in p.items()}


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def without_zeros(s, name, value):
    """value without the elements whose gradient is zero in exact arithmetic"""
    flat = value.reshape(-1)
    for entry in zero_gradients(s):
        zero_name, begin, end = entry.rsplit(":", 2)
        if zero_name == name:
            flat = torch.cat((flat[: int(begin)], flat[int(end):]))
    return flat


def controls(s, parameters, documents):
    """Largest change of a logit through one small mistake of each kind; must stand well above the tolerance."""
    mistakes = {"epsilon": dict(norm_epsilon=s.norm_epsilon * 10)}
    if s.positions == "rope":
        mistakes["theta"] = dict(rope_theta=s.rope_theta * 1.1)
    if s.sliding_window:
        mistakes["window"] = dict(sliding_window=s.sliding_window + 1)
    for field in dataclasses.fields(Shape):
        if field.name in OPTIONAL and getattr(s, field.name) != field.default and field.name != "sandwich_norm":
            if field.name == "partial_rotary_factor" and s.rope_scaling != "none":
                continue  # longrope has a number for each frequency
            mistakes[field.name] = {field.name: field.default}
    if s.activation in ("gelu", "gelu_tanh"):
        mistakes["activation"] = dict(activation="gelu" if s.activation == "gelu_tanh" else "gelu_tanh")
    p = {n: torch.tensor(v, dtype=torch.float64) for n, v in parameters.items()}
    decode = lambda shape: torch.cat([decoder.decode(p, shape, d) for d in documents])
    right = decode(s)
    return {k: (decode(dataclasses.replace(s, **m)) - right).abs().max().item() for k, m in mistakes.items()}


def autocast(run):
    def wrapped(p):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return run(p)

    return wrapped


def build_case(s, lengths, packed, seed):
    """Everything the file holds, or the reason why this seed will not do."""
    parameters = random_parameters(s, seed)
    rng = np.random.default_rng([seed, 1])
    documents, targets = random_batch(rng, lengths, packed)
    model = hugging_face.build(s)
    if model is not None:
        hugging_face.check_complete(model, s, parameters)

    def own(docs):
        return lambda p: torch.cat([decoder.decode(p, s, d) for d in docs])

    def reference(docs):
        return own(docs) if model is None else lambda p: hugging_face.decode(model, s, p, docs)

    run = reference(documents)
    logits, loss, grads = first_pass(parameters, run, targets)
    losses, norms, final = train(parameters, run, targets)
    exact = first_pass(parameters, own(documents), targets, torch.float64)
    exact_losses, exact_norms, exact_final = train(parameters, own(documents), targets, torch.float64)

    compared = {n: (without_zeros(s, n, g), without_zeros(s, n, exact[2][n])) for n, g in grads.items()}
    agreement = {
        "logits": (logits - exact[0]).abs().max().item(),
        "gradients": max(relative(a, b) for a, b in compared.values()),
        "losses": max(abs(a - b) / abs(b) for a, b in zip(losses, exact_losses)),
        "grad_norms": max(abs(a - b) / b for a, b in zip(norms, exact_norms)),
        "final": max(relative(without_zeros(s, n, final[n]), without_zeros(s, n, exact_final[n])) for n in final),
    }
    if agreement["losses"] > LOSSES_AGREE:
        return None, f"losses in fp32 and fp64 differ by {agreement['losses']:.1e}"
    assert agreement["logits"] < 2e-5 and agreement["gradients"] < 5e-6, agreement
    mistakes = controls(s, parameters, documents)
    if min(mistakes.values()) < 2e-4:
        return None, f"a mistake would not show: {mistakes}"
    if max(norms) <= MAX_NORM:
        return None, "clipping never acts"

    low_logits, low_loss, low_grads = first_pass(parameters, autocast(run), targets)
    low_losses, low_norms, _ = train(parameters, autocast(run), targets)
    errors = [low_loss - loss]
    for extra in range(2, 17):
        docs, wanted = random_batch(np.random.default_rng([seed, extra]), lengths, packed)
        with torch.no_grad():
            p = leaves(parameters)
            pair = [mean_loss(f(p), wanted).item() for f in (reference(docs), autocast(reference(docs)))]
        errors.append(pair[1] - pair[0])
    return dict(parameters=parameters, documents=documents, targets=targets, logits=logits, loss=loss, grads=grads,
                losses=losses, norms=norms, final=final, agreement=agreement, controls=mistakes,
                source="own decoder" if model is None else type(model).__name__,
                low=dict(logits=low_logits.float(), loss=low_loss, grads=low_grads, losses=low_losses, norms=low_norms,
                         loss_error=float(np.sqrt(np.mean(np.square(errors)))))), None


def rounded(value, bits):
    """value to `bits` significant bits, so that the files compress"""
    mantissa, exponent = np.frexp(value.double().numpy())
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


def write_case(path, name, s, seed, r):
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        def put(where, value, dtype=np.float32):
            value = np.ascontiguousarray(np.asarray(value), dtype=dtype)
            small = value.size < 256
            return f.create_dataset(where, data=value, compression=None if small else "gzip",
                                    compression_opts=None if small else 9, shuffle=not small)

        f.attrs["case"] = name
        for key, value in dataclasses.asdict(s).items():
            if key in OPTIONAL and value == getattr(Shape, key):
                continue
            f.attrs[key] = np.int64(value) if isinstance(value, (bool, int)) else value
        f.attrs["seed"] = np.int64(seed)
        f.attrs["made_by"] = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
        f.attrs["source"] = r["source"]
        f.attrs["zero_gradients"] = "\n".join(zero_gradients(s))
        for key, value in dict(learning_rate=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], epsilon=EPSILON,
                               weight_decay=WEIGHT_DECAY, max_grad_norm=MAX_NORM).items():
            f.attrs[f"adamw_{key}"] = value
        for key, value in r["agreement"].items():
            f.attrs[f"fp64_{key}_error"] = value
        for key, value in r["controls"].items():
            f.attrs[f"control_{key}"] = value

        lengths = [len(d) for d in r["documents"]]
        put("ids", torch.cat(r["documents"]), np.int32)
        put("targets", r["targets"], np.int32)
        put("positions", np.concatenate([np.arange(n) for n in lengths]), np.int32)
        put("segments", np.cumsum([0] + lengths), np.int32)
        for prefix, data in (("", r), ("bf16/", r["low"])):
            put(f"{prefix}logits", data["logits"])
            put(f"{prefix}loss", data["loss"], np.float64)
            put(f"{prefix}losses", data["losses"], np.float64)
            put(f"{prefix}grad_norms", data["norms"], np.float64)
        f["bf16"].attrs["loss_error"] = r["low"]["loss_error"]
        for key in parameter_shapes(s):
            put(f"params/{key}", r["parameters"][key])
            grad = put(f"grads/{key}", rounded(r["grads"][key], GRADIENT_BITS))
            error = without_zeros(s, key, r["low"]["grads"][key] - r["grads"][key])
            grad.attrs["bf16_error"] = error.double().norm().item()
            grad.attrs["norm"] = without_zeros(s, key, r["grads"][key]).double().norm().item()
            f[f"params/{key}"].attrs["final_norm"] = without_zeros(s, key, r["final"][key]).double().norm().item()


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = pathlib.Path(__file__).parent / "models"
    for name in sys.argv[1:] or CASES:
        s, lengths, packed = CASES[name]
        for seed in range(1, 100):
            result, reason = build_case(s, lengths, packed, seed)
            if result:
                break
            print(f"{name}: seed {seed}: {reason}")
        else:
            raise SystemExit(f"{name}: no seed will do")
        path = folder / f"{name}.h5"
        write_case(path, name, s, seed, result)
        facts = {k: f"{v:.1e}" for k, v in (result["agreement"] | result["controls"]).items()}
        print(f"{name}: seed {seed}, {result['source']}, {path.stat().st_size / 1000:.0f} kB, loss "
              f"{result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}, norm {result['norms'][0]:.2f}, {facts}")


if __name__ == "__main__":
    main()
