"""What ten AdamW steps with GKD's loss make of a tiny model, for tests/decks/distill_test.cpp.

Writes beside this file: teacher/ (a random GPT-2 with the vocabulary of the student, ../sft/model), and steps.json: for
each case the trained tokens, the loss and the gradient norm of ten steps of four micro-batches of one row of
../sft/messages.jsonl, by TRL's SFTTrainer with the loss of its GKDTrainer (generalized_jsd_loss).

    python make_step_goldens.py

Versions: torch 2.15.0 (CPU), transformers 5.23.0, trl 1.16.0, Python 3.11, one thread, fp32.
"""
import json
import pathlib

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel
from trl import SFTConfig, SFTTrainer
from trl.experimental.gkd import GKDTrainer

HERE = pathlib.Path(__file__).parent
SFT = HERE.parent / "sft"
STEPS, ROWS_PER_STEP = 10, 4
CASES = {"forward_kl": (0, 1, 0), "reverse_kl": (1, 1, 0), "jsd": (0.3, 2, 0), "mixed": (0, 1.5, 0.5)}


def make_teacher(words):
    torch.manual_seed(9)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=words, n_embd=16, n_layer=1, n_head=2, n_positions=512,
                                       bos_token_id=0, eos_token_id=0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.randn_like(parameter) * 0.5 * 1024).round() / 1024)
    model.save_pretrained(HERE / "teacher")


class Trainer(SFTTrainer):
    teacher, terms, losses = None, None, None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        beta, temperature, cross_entropy = self.terms
        named = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
        logits = model(**named).logits[:, :-1]
        with torch.no_grad():
            taught = self.teacher(**named).logits[:, :-1]
        labels = inputs["labels"][:, 1:]
        loss = GKDTrainer.generalized_jsd_loss(logits, taught, labels, beta, temperature,
                                               num_items_in_batch=num_items_in_batch)
        of_data = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return loss + cross_entropy * of_data / num_items_in_batch

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.losses = (self.losses or []) + [float(loss)]
        return loss


def train(rows, tokenizer, terms):
    model = AutoModelForCausalLM.from_pretrained(SFT / "model", dtype=torch.float32, attn_implementation="eager")
    arguments = SFTConfig(output_dir="/tmp/distillation_goldens", max_steps=STEPS, per_device_train_batch_size=1,
                          gradient_accumulation_steps=ROWS_PER_STEP, learning_rate=1e-3, lr_scheduler_type="constant",
                          weight_decay=0.0, max_grad_norm=1.0, logging_steps=1, report_to=[], save_strategy="no",
                          train_sampling_strategy="sequential", use_cpu=True, bf16=False, gradient_checkpointing=False,
                          max_length=512, packing=False, shuffle_dataset=False, disable_tqdm=True, dataset_num_proc=1,
                          optim="adamw_torch", logging_nan_inf_filter=False, seed=1, assistant_only_loss=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.teacher, trainer.terms = GPT2LMHeadModel.from_pretrained(HERE / "teacher").eval(), terms
    targets = [int((batch["labels"][:, 1:] != -100).sum()) for batch in trainer.get_train_dataloader()]
    trainer.train()
    steps = [slice(step * ROWS_PER_STEP, (step + 1) * ROWS_PER_STEP) for step in range(STEPS)]
    return {"tokens": [sum(targets[step]) for step in steps], "loss": [sum(trainer.losses[step]) for step in steps],
            "grad_norm": [float(log["grad_norm"]) for log in trainer.state.log_history if "grad_norm" in log]}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = AutoTokenizer.from_pretrained(SFT / "model")
    make_teacher(len(tokenizer))
    rows = [json.loads(line) for line in open(SFT / "messages.jsonl", encoding="utf-8")]
    golden = {name: train(rows, tokenizer, terms) for name, terms in CASES.items()}
    (HERE / "steps.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
