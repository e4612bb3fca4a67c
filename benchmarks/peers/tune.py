"""The peers of fine_tuning.py, preferences.py, qlora_steps.py and sft_outcome.py on a processor: TRL, PEFT, bitsandbytes
and Transformers.

    python tune.py TASK JSON

JSON is an object of settings, TASK one of: model (writes a Llama with random weights, its tokenizer and a LoRA adapter),
group (orders rows), sft, dpo, reward, grpo (TRL's trainers), qlora (PEFT over bitsandbytes' 4 bits) and generate. `peer` is
a list of words with + between them; those that are not there leave the package's default:

    fp32 | autocast | bf16  weights and arithmetic; autocast has fp32 weights and multiplies bf16, bf16 has nothing else
    compile                 torch.compile: of the model, in generation of a token's step
    free, packed            SFT without padding; packed by best fit
    precomputed             DPO with log-probabilities of the reference that were computed before the first step
    static, continuous      the key-value cache of generation; continuous batching

What it measured goes to the file `result`: seconds, losses and trained tokens of every step, and versions.
"""

import contextlib
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig
from transformers import BitsAndBytesConfig, CompileConfig, LlamaForCausalLM, TrainerCallback

from train_decoder import allocator


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def tokenizer_of(folder, **options):
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def write_model(case):
    from peft import LoraConfig, get_peft_model
    tokenizer = AutoTokenizer.from_pretrained(case["tokenizer"])
    torch.manual_seed(0)
    width = case["width"]
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=case["inner"], num_hidden_layers=case["layers"],
        num_attention_heads=width // 64, num_key_value_heads=width // 64, max_position_embeddings=case["positions"],
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, attention_dropout=0.0))
    model.save_pretrained(case["base"])
    tokenizer.save_pretrained(case["base"])
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model.name_or_path = case["base"]
    get_peft_model(model, adapter).save_pretrained(case["base"] + "-adapter")


def group(case):
    """Rows of like lengths share a step; the steps stand in random order. The first rows, which nobody times, stay."""
    tokenizer, rows, batch = tokenizer_of(case["base"]), read(case["rows"]), case["batch"]
    answers = ("completion", "chosen", "rejected")
    length = lambda row: max(len(tokenizer(row["prompt"] + row[key])["input_ids"]) for key in answers if key in row)
    rest = sorted(rows[case["first"]:], key=length)
    steps = [rest[at:at + batch] for at in range(0, len(rest), batch)]
    order = torch.randperm(len(steps), generator=torch.Generator().manual_seed(0)).tolist()
    with open(case["result"], "w", encoding="utf-8") as f:
        for row in rows[:case["first"]] + [row for step in order for row in steps[step]]:
            f.write(json.dumps(row) + "\n")


class Clock(TrainerCallback):
    """A step lasts from the end of the one before to its own."""

    def __init__(self):
        self.ends, self.logs = [], []

    def on_train_begin(self, *_, **__):
        self.ends.append(time.perf_counter())

    def on_step_end(self, *_, **__):
        self.ends.append(time.perf_counter())

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            self.logs.append(logs)

    def seconds(self):
        return [b - a for a, b in zip(self.ends, self.ends[1:])]


def trained_tokens(inputs):
    if "labels" in inputs:
        return int((inputs["labels"][..., 1:] != -100).sum())
    return int(inputs["completion_mask"].sum()) if "completion_mask" in inputs else 0


def train(task, case, parts):
    import trl
    from datasets import Dataset
    from peft import LoraConfig, set_peft_model_state_dict
    from safetensors.torch import load_file
    kind = {"sft": "SFT", "dpo": "DPO", "reward": "Reward", "grpo": "GRPO"}[task]
    dtype = torch.bfloat16 if "bf16" in parts else torch.float32
    tokenizer = tokenizer_of(case["base"])
    settings = dict(
        output_dir=case["result"] + ".trl", max_steps=case["steps"], per_device_train_batch_size=case["micro"],
        gradient_accumulation_steps=case["accumulate"], learning_rate=case["rate"], lr_scheduler_type="constant",
        weight_decay=0.0, max_grad_norm=1.0, report_to=[], save_strategy="no", use_cpu=True, bf16="autocast" in parts,
        gradient_checkpointing=False, disable_tqdm=True, logging_steps=1, torch_compile="compile" in parts)
    if task == "grpo":
        settings.update(num_generations=8, generation_batch_size=case["micro"] * case["accumulate"],
                        max_completion_length=case["new"], beta=0.0, shuffle_dataset=False,
                        cache_implementation="static" if "static" in parts else None,
                        use_transformers_continuous_batching="continuous" in parts)
    else:
        settings.update(train_sampling_strategy="sequential", max_length=case["length"], per_device_eval_batch_size=4)
    if task == "sft":
        settings.update(packing="packed" in parts, padding_free="free" in parts, shuffle_dataset=False)
        if "free" in parts:
            settings["max_length"] = None  # which the trainer demands; rows are shorter
    if task == "dpo":
        settings.update(precompute_ref_log_probs="precomputed" in parts)
    reward = task == "reward"
    model = (AutoModelForSequenceClassification if reward else AutoModelForCausalLM).from_pretrained(
        case["base"], dtype=dtype, **({"num_labels": 1} if reward else {}))
    if reward:
        model.config.pad_token_id = tokenizer.pad_token_id
    tokens = []

    class Trainer(getattr(trl, kind + "Trainer")):
        def compute_loss(self, model, inputs, *args, **kwargs):
            tokens.append(trained_tokens(inputs))
            return super().compute_loss(model, inputs, *args, **kwargs)

    clock = Clock()
    options = {}
    if task == "grpo":
        options["reward_funcs"] = lambda completions, **_: [-abs(len(text) - 64.0) for text in completions]
    if case.get("held"):
        options["eval_dataset"] = Dataset.from_list(read(case["held"]))
    adapter = LoraConfig.from_pretrained(case["adapter"]) if case.get("adapter") else None
    if adapter:
        adapter.inference_mode = False
    trainer = Trainer(model=model, args=getattr(trl, kind + "Config")(**settings), processing_class=tokenizer,
                      train_dataset=Dataset.from_list(read(case["rows"])), callbacks=[clock],
                      peft_config=adapter, **options)
    if adapter:
        set_peft_model_state_dict(trainer.model, load_file(case["adapter"] + "/adapter_model.safetensors"))
    if task == "grpo" and {"static", "compile"} <= parts:
        trainer.generation_config.disable_compile = False
        trainer.generation_config.compile_config = compile_config()
    trainer.train()
    if case.get("save"):
        trainer.save_model(case["save"])
    per_step = case["accumulate"]
    return dict(seconds=clock.seconds(), losses=[float(logs["loss"]) for logs in clock.logs],
                entropies=[float(logs.get("entropy", 0)) for logs in clock.logs],
                tokens=[sum(tokens[at:at + per_step]) for at in range(0, case["steps"] * per_step, per_step)],
                held=trainer.evaluate() if case.get("held") else {})


def qlora(case, parts):
    from peft import PeftModel
    compute = torch.float32 if "fp32" in parts else torch.bfloat16
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                      bnb_4bit_compute_dtype=compute)
    model = AutoModelForCausalLM.from_pretrained(case["base"], dtype=torch.bfloat16 if "bf16" in parts else torch.float32,
                                                 quantization_config=quantization, device_map="cpu")
    model = PeftModel.from_pretrained(model, case["adapter"], is_trainable=True).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=case["rate"], weight_decay=0.0,
                                  fused=True)
    run = torch.compile(model) if "compile" in parts else model
    rows = torch.tensor([row["input_ids"] for row in read(case["rows"])])
    losses, seconds = [], []
    for batch in rows[:case["steps"] * case["micro"]].split(case["micro"]):
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if "autocast" in parts else contextlib.nullcontext():
            loss = run(input_ids=batch[:, :-1], labels=batch[:, :-1], shift_labels=batch[:, 1:].contiguous()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    return dict(seconds=seconds, losses=losses, tokens=[case["micro"] * (rows.shape[1] - 1)] * len(losses))


def compile_config():
    config = CompileConfig()
    config._compile_all_devices = True  # without it generation is compiled on GPUs alone
    return config


def generate(case, parts):
    tokenizer = tokenizer_of(case["base"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(case["base"], dtype=torch.bfloat16 if "bf16" in parts else torch.float32)
    inputs = tokenizer([row["prompt"] for row in read(case["rows"])], return_tensors="pt", padding=True)
    options = dict(do_sample=True, top_k=0, max_new_tokens=case["new"], min_new_tokens=case["new"],
                   pad_token_id=tokenizer.pad_token_id)
    if "static" in parts:
        options.update(cache_implementation="static", disable_compile="compile" not in parts)
    if "compile" in parts:
        options.update(compile_config=compile_config())
    seconds = []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled="autocast" in parts):
        for _ in range(2):  # the first call compiles and warms
            begin = time.perf_counter()
            model.generate(**inputs, **options)
            seconds.append(time.perf_counter() - begin)
    return dict(seconds=seconds[1:], losses=[], tokens=[len(inputs["input_ids"]) * case["new"]])


def main():
    task, case = sys.argv[1], json.loads(sys.argv[2])
    if task in ("model", "group"):
        return write_model(case) if task == "model" else group(case)
    parts = set(case["peer"].split("+"))
    known = {"fp32", "autocast", "bf16", "compile", "grouped", "free", "packed", "precomputed", "static", "continuous"}
    if parts - known:
        sys.exit(f"a peer has no {' '.join(parts - known)}: {' '.join(sorted(known))}")
    run = {"qlora": qlora, "generate": generate}.get(task)
    result = run(case, parts) if run else train(task, case, parts)
    from importlib.metadata import version
    packages = ["torch", "transformers"] + {"qlora": ["peft", "bitsandbytes"], "generate": []}.get(task, ["trl", "peft"])
    result["settings"] = ", ".join(f"{package} {version(package)}" for package in packages)
    result["settings"] += f", malloc of {allocator()}, {torch.get_num_threads()} threads"
    with open(case["result"], "w", encoding="utf-8") as f:
        json.dump(result, f)


if __name__ == "__main__":
    main()
