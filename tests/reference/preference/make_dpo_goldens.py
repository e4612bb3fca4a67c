"""What TRL's DPOTrainer and KTOTrainer make of a tiny model (../sft/model), for tests/decks/preference_test.cpp.

Writes beside this file: texts.jsonl and conversations.jsonl (pairs of very unequal lengths), unpaired.jsonl (one answer
of each of these pairs), adapter/ (PEFT's adapter before the first step), and dpo.json: for each case the losses,
gradient norms and metrics of five steps of four micro-batches of one pair. Losses that compare the rows of a step get
one micro-batch of four, because TRL compares those of a micro-batch.

    python make_dpo_goldens.py

Versions: torch 2.15.0 (CPU), transformers 5.24.0, trl 1.16.0, peft 0.21.2, Python 3.11, one thread, fp32.
"""
import json
import pathlib
import random
import sys
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "sft"))
from make_sft_goldens import sentence  # noqa: E402

MODEL = HERE.parent / "sft" / "model"
STEPS, PAIRS_PER_STEP = 5, 4
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen",
           "logps/rejected", "kl"]
OF_TOKENS = ["entropy", "logits/chosen", "logits/rejected"]  # means over tokens of a micro-batch, then over micro-batches


def write(name, rows):
    with open(HERE / name, "w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return rows


def make_data():
    numbers = random.Random(11)
    texts, conversations = [], []
    for row in range(STEPS * PAIRS_PER_STEP):
        texts.append({"prompt": sentence(numbers, 1 + row % 11), "chosen": " " + sentence(numbers, 1 + row * 7 % 19),
                      "rejected": " " + sentence(numbers, 1 + row * 5 % 13)})
        prompt = [{"role": "system", "content": sentence(numbers, 4)}] if row % 3 == 0 else []
        prompt.append({"role": "user", "content": sentence(numbers, 2 + row % 7)})
        answer = [[{"role": "assistant", "content": sentence(numbers, 1 + row * k % 17)}] for k in (3, 7)]
        if row % 2 == 0:
            conversations.append({"prompt": prompt, "chosen": answer[0], "rejected": answer[1]})
        else:  # an implicit prompt
            conversations.append({"prompt": None, "chosen": prompt + answer[0], "rejected": prompt + answer[1]})
    explicit = [row for row in conversations if row["prompt"]]
    implicit = [{key: value for key, value in row.items() if value} for row in conversations if not row["prompt"]]
    unpaired = [{"prompt": row["prompt"], "completion": row["rejected" if number % 3 == 1 else "chosen"],
                 "label": number % 3 != 1} for number, row in enumerate(texts)]
    return (write("texts.jsonl", texts), write("conversations.jsonl", explicit), write("implicit.jsonl", implicit),
            write("unpaired.jsonl", unpaired))


class ExactLosses:
    """Keeps the losses of micro-batches, which the log rounds."""
    losses = None

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.losses = (self.losses or []) + [float(loss)]
        return loss


class ExactDpo(ExactLosses, DPOTrainer):
    pass


class ExactKto(ExactLosses, KTOTrainer):
    pass


def train(rows, tokenizer, adapter=None, steps=STEPS, micro=1, **settings):
    config, exact = (KTOConfig, ExactKto) if "label" in rows[0] else (DPOConfig, ExactDpo)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = config(output_dir=folder, max_steps=steps, per_device_train_batch_size=micro,
                           gradient_accumulation_steps=PAIRS_PER_STEP // micro, learning_rate=1e-3,
                           lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, logging_steps=1,
                           report_to=[], save_strategy="no", train_sampling_strategy="sequential", use_cpu=True,
                           bf16=False, gradient_checkpointing=False, disable_tqdm=True, dataset_num_proc=1,
                           optim="adamw_torch", logging_nan_inf_filter=False, seed=1,
                           **{"max_length": 512, **settings})
        trainer = exact(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        trainer.train()
    logs = [log for log in trainer.state.log_history if "grad_norm" in log]
    each = PAIRS_PER_STEP // micro
    result = {"loss": [sum(trainer.losses[s * each:(s + 1) * each]) for s in range(steps)],
              "grad_norm": [float(log["grad_norm"]) for log in logs]}
    return result | {name: [float(log[name]) for log in logs]
                     for name in METRICS + (OF_TOKENS if each == 1 else []) if name in logs[0]}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    texts, conversations, implicit, unpaired = make_data()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    torch.manual_seed(7)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    lora = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    lora.save_pretrained(HERE / "adapter")
    (HERE / "adapter" / "README.md").unlink(missing_ok=True)
    settings = json.loads((HERE / "adapter" / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = None
    (HERE / "adapter" / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    cases = {
        "sigmoid": train(texts, tokenizer),
        "beta": train(texts, tokenizer, beta=0.5),
        "conversations": train(conversations, tokenizer, steps=2),
        "implicit": train(implicit, tokenizer, steps=2),
        "lora": train(texts, tokenizer, HERE / "adapter"),
        "truncated": train(texts, tokenizer, max_length=48),
        "weighted": train(texts, tokenizer, micro=PAIRS_PER_STEP, loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0]),
    }
    for name in ("hinge", "ipo", "nca_pair", "sppo_hard", "apo_zero", "apo_down", "discopop", "sigmoid_norm"):
        cases[name] = train(texts, tokenizer, loss_type=[name])
    cases["robust"] = train(texts, tokenizer, loss_type=["robust"], label_smoothing=0.1)
    cases["js"] = train(texts, tokenizer, f_divergence_type="js_divergence")
    whole = {"micro": PAIRS_PER_STEP}
    cases["aot"] = train(texts, tokenizer, loss_type=["aot"], **whole)
    cases["aot_unpaired"] = train(texts, tokenizer, loss_type=["aot_unpaired"], label_smoothing=0.1, **whole)
    cases["kto"] = train(unpaired, tokenizer, **whole)
    cases["kto_weights"] = train(unpaired, tokenizer, beta=0.5, desirable_weight=1.5, undesirable_weight=0.75, **whole)
    cases["synchronised"] = train(texts, tokenizer, sync_ref_model=True, ref_model_sync_steps=2,
                                  ref_model_mixup_alpha=0.6)
    with open(HERE / "dpo.json", "w", encoding="utf-8") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
