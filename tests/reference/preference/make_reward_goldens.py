"""What TRL's RewardTrainer makes of a tiny model, for tests/decks/reward_test.cpp.

Writes beside this file: reward_model/ (../sft/model in bf16 with a score head in place of its own), reward_adapter/
(PEFT's adapter of ../sft/model for sequence classification, before the first step), margins.jsonl (texts.jsonl with a
margin in each row), and reward.json: for each case the losses, gradient norms and metrics of five steps of four
micro-batches of one pair; "scores": those of reward_model for the pairs of texts.jsonl and conversations.jsonl, and of
reward_adapter.

    python make_reward_goldens.py

Versions: torch 2.15.0 (CPU), transformers 5.24.0, trl 1.16.0, peft 0.21.2, Python 3.11, one thread, fp32.
"""
import json
import pathlib
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer

HERE = pathlib.Path(__file__).parent
LANGUAGE_MODEL = HERE.parent / "sft" / "model"
STEPS, PAIRS_PER_STEP = 5, 4
METRICS = ["accuracy", "margin", "mean_reward"]


def rows_of(name):
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def load(path):
    return AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.float32,
                                                              attn_implementation="eager")


def make_models():
    torch.manual_seed(11)
    model = load(LANGUAGE_MODEL)
    model.score.weight.data.normal_(0, 0.3)
    model.to(torch.bfloat16).save_pretrained(HERE / "reward_model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (HERE / "reward_model" / name).write_bytes((LANGUAGE_MODEL / name).read_bytes())
    base = load(LANGUAGE_MODEL)
    base.score.weight.data.normal_(0, 0.3)
    lora = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"],
                                           task_type="SEQ_CLS"))
    lora.save_pretrained(HERE / "reward_adapter")
    (HERE / "reward_adapter" / "README.md").unlink(missing_ok=True)
    settings = json.loads((HERE / "reward_adapter" / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = None
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (HERE / "reward_adapter" / "adapter_config.json").write_text(text)


def make_margins():
    numbers = random.Random(5)
    rows = [row | {"margin": round(numbers.uniform(-1, 2), 3)} for row in rows_of("texts.jsonl")]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (HERE / "margins.jsonl").write_text(text, encoding="utf-8", newline="\n")
    return rows


class ExactTrainer(RewardTrainer):
    """Keeps the losses of micro-batches, which the log rounds."""
    losses = None

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.losses = (self.losses or []) + [float(loss)]
        return loss


def train(rows, tokenizer, adapter=None, steps=STEPS, **settings):
    model = load(HERE / "reward_model" if adapter is None else LANGUAGE_MODEL)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = RewardConfig(output_dir=folder, max_steps=steps, per_device_train_batch_size=1,
                                 gradient_accumulation_steps=PAIRS_PER_STEP, learning_rate=1e-3,
                                 lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, logging_steps=1,
                                 report_to=[], save_strategy="no", train_sampling_strategy="sequential", use_cpu=True,
                                 bf16=False, gradient_checkpointing=False, disable_tqdm=True, dataset_num_proc=1,
                                 optim="adamw_torch", logging_nan_inf_filter=False, seed=1,
                                 **{"max_length": 512, **settings})
        trainer = ExactTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows),
                               processing_class=tokenizer)
        trainer.train()
    logs = [log for log in trainer.state.log_history if "grad_norm" in log]
    result = {"loss": [sum(trainer.losses[s * PAIRS_PER_STEP:(s + 1) * PAIRS_PER_STEP]) for s in range(steps)],
              "grad_norm": [float(log["grad_norm"]) for log in logs]}
    return result | {name: [float(log[name]) for log in logs] for name in METRICS}


def texts_of(row, tokenizer):
    for answer in ("chosen", "rejected"):
        if isinstance(row["prompt"], str):
            yield tokenizer(row["prompt"] + row[answer] + tokenizer.eos_token)["input_ids"]
        else:
            yield tokenizer.apply_chat_template(row["prompt"] + row[answer], tokenize=True, return_dict=True)["input_ids"]


def scores(model, rows, tokenizer):
    model.eval()
    with torch.no_grad():
        return [[float(model(input_ids=torch.tensor([ids])).logits[0, 0]) for ids in texts_of(row, tokenizer)]
                for row in rows]


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make_models()
    margins, texts, conversations = make_margins(), rows_of("texts.jsonl"), rows_of("conversations.jsonl")
    tokenizer = AutoTokenizer.from_pretrained(LANGUAGE_MODEL)
    adapter = HERE / "reward_adapter"
    cases = {
        "plain": train(texts, tokenizer),
        "margin": train(margins, tokenizer),
        "centred": train(texts, tokenizer, center_rewards_coefficient=0.01),
        "both": train(margins, tokenizer, center_rewards_coefficient=0.1),
        "conversations": train(conversations, tokenizer, steps=2),
        "short": train(texts, tokenizer, max_length=60, steps=3),
        "lora": train(texts, tokenizer, adapter),
        "scores": {"texts": scores(load(HERE / "reward_model"), texts, tokenizer),
                   "conversations": scores(load(HERE / "reward_model"), conversations, tokenizer),
                   "adapter": scores(PeftModel.from_pretrained(load(LANGUAGE_MODEL), adapter), texts, tokenizer)},
    }
    with open(HERE / "reward.json", "w", encoding="utf-8") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
