"""What TRL's SFTTrainer makes of a tiny model, for tests/decks/sft_test.cpp.

Writes beside this file: model/ (a random Llama with a byte-level tokenizer and a chat template with generation blocks, as
Transformers saves them), messages.jsonl and completions.jsonl (rows of very unequal lengths), and expected.json: for each
case the trained tokens, the loss and the gradient norm of ten steps of four micro-batches of one row.

    python make_sft_goldens.py

Versions: torch 2.15.0 (CPU), transformers 5.24.0, trl 1.16.0, tokenizers 0.23.3, Python 3.11, one thread, fp32.
"""
import json
import pathlib
import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

HERE = pathlib.Path(__file__).parent
STEPS, ROWS_PER_STEP = 10, 4
TEMPLATE = """\
{%- for message in messages %}
{%- if message['role'] == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

WORDS = ("the a one every sea ship wind harbour captain letter night lamp storm island map gold silver bird song stone river "
         "is was finds keeps writes reads turns sails sleeps waits burns falls slowly again never alone 1879 42 cafe na\u00efve "
         "\u00dcbermut \u6771\u4eac .").split()


def sentence(numbers, words):
    return " ".join(numbers.choice(WORDS) for _ in range(words))


def write(name, rows):
    with open(HERE / name, "w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def make_data():
    numbers = random.Random(5)
    messages, completions = [], []
    for row in range(STEPS * ROWS_PER_STEP):
        turns = [{"role": "system", "content": sentence(numbers, 4)}] if row % 3 == 0 else []
        for _ in range(1 + row % 3):
            turns.append({"role": "user", "content": sentence(numbers, 2 + row % 7)})
            turns.append({"role": "assistant", "content": sentence(numbers, 1 + (row * row) % 23)})
        messages.append({"messages": turns})
        completions.append({"prompt": sentence(numbers, 1 + row % 11), "completion": " " + sentence(numbers, 1 + (row * 7) % 19)})
    write("messages.jsonl", messages)
    write("completions.jsonl", completions)
    return messages, completions


def make_model():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    numbers = random.Random(1)
    trainer = trainers.BpeTrainer(vocab_size=317, special_tokens=[], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([sentence(numbers, 30) for _ in range(60)], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|pad|>",
                                   additional_special_tokens=["<|im_start|>", "<|im_end|>"])
    fast.chat_template = TEMPLATE
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=512, rope_theta=10000.0, rms_norm_eps=1e-5,
                         tie_word_embeddings=False, eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if name.endswith("norm.weight") else 0.12
            value = torch.randn_like(parameter) * scale + (1 if name.endswith("norm.weight") else 0)
            parameter.copy_((value * 4096).round() / 4096)
    model.save_pretrained(HERE / "model")
    fast.save_pretrained(HERE / "model")
    return fast


class ExactTrainer(SFTTrainer):
    """Keeps the losses of micro-batches, which the log rounds."""
    losses = None

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.losses = (self.losses or []) + [float(loss)]
        return loss


def train(rows, tokenizer, trainable=None, config=None, **settings):
    """trainable(name): True for parameters that are trained; None: all are. config: other values for config.json."""
    model = AutoModelForCausalLM.from_pretrained(HERE / "model", dtype=torch.float32, attn_implementation="eager", **(config or {}))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable is None or trainable(name))
    arguments = SFTConfig(output_dir="/tmp/sft_goldens", max_steps=STEPS, per_device_train_batch_size=1,
                          gradient_accumulation_steps=ROWS_PER_STEP, learning_rate=1e-3, lr_scheduler_type="constant",
                          weight_decay=0.0, max_grad_norm=1.0, logging_steps=1, report_to=[], save_strategy="no",
                          train_sampling_strategy="sequential", use_cpu=True, bf16=False, gradient_checkpointing=False,
                          max_length=512, packing=False, shuffle_dataset=False, disable_tqdm=True, dataset_num_proc=1,
                          optim="adamw_torch", logging_nan_inf_filter=False, seed=1, **settings)
    trainer = ExactTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    counts = []
    batches = trainer.get_train_dataloader()
    targets = [int((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
    for step in range(STEPS):
        counts.append(sum(targets[step * ROWS_PER_STEP:(step + 1) * ROWS_PER_STEP]))
    trainer.train()
    logs = [log for log in trainer.state.log_history if "grad_norm" in log]
    return {"tokens": counts, "loss": [sum(trainer.losses[step * ROWS_PER_STEP:(step + 1) * ROWS_PER_STEP]) for step in range(STEPS)],
            "logged_loss": [log["loss"] for log in logs], "grad_norm": [float(log["grad_norm"]) for log in logs],
            "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)}


def layers(*indices):
    return lambda name: any(name.startswith(f"model.layers.{index}.") for index in indices)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    messages, completions = make_data()
    tokenizer = make_model()
    cases = {
        "messages": train(messages, tokenizer, assistant_only_loss=True),
        "completions": train(completions, tokenizer),
        "dft": train(messages, tokenizer, assistant_only_loss=True, loss_type="dft"),
        "freeze_last_2": train(messages, tokenizer, layers(2, 3), assistant_only_loss=True),
        "freeze_first_1": train(messages, tokenizer, layers(0), assistant_only_loss=True),
        "freeze_mlp_and_norm": train(messages, tokenizer, assistant_only_loss=True, trainable=lambda name: name == "model.norm.weight"
                                     or (layers(2, 3)(name) and ".mlp." in name)),
        "freeze_llama_pro_2": train(messages, tokenizer, layers(1, 3), assistant_only_loss=True),
        "padding_in_rows": train(messages, tokenizer, config={"pad_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>")},
                                 assistant_only_loss=True),
    }
    with open(HERE / "expected.json", "w", encoding="utf-8") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
