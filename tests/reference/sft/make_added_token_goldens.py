"""What Transformers and TRL make of model/ with further special tokens, for tests/decks/added_tokens_test.cpp.

Writes beside this file: added_tokens.jinja (a template that writes the new tokens) and added_tokens.json: the number of
rows after resize_token_embeddings, the mean of the rows that were there before (which Transformers' new rows are drawn
around, with 1e-9 of their covariance), ids of texts, and the trained tokens, losses and gradient norms of ten steps of
TRL's SFTTrainer that begin with the mean itself.

    python make_added_token_goldens.py

Versions: torch 2.15.0 (CPU), transformers 5.24.0, trl 1.16.0, tokenizers 0.23.3, Python 3.11, one thread, fp32.
"""
import json
import pathlib
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import make_sft_goldens as base

HERE = pathlib.Path(__file__).parent
TOKENS = ["<|user|>", "<|bot|>", "<|im_end|>", "<|stop|>"]  # one is there already
TEMPLATE = """\
{%- for message in messages %}
{%- if message['role'] == 'assistant' %}
{{- '<|bot|>' }}{% generation %}{{ message['content'] + '<|stop|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{- '<|user|>' + message['content'] + '<|stop|>\\n' }}
{%- endif %}
{%- endfor %}"""
TEXTS = ["<|user|>the sea<|stop|>\n<|bot|> a ship", "<|bot|><|im_end|><|endoftext|>", "<|us<|user|>er|>"]


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = AutoTokenizer.from_pretrained(HERE / "model")
    model = AutoModelForCausalLM.from_pretrained(HERE / "model", dtype=torch.float32)
    before = model.get_input_embeddings().weight.shape[0]
    tokenizer.add_tokens(TOKENS, special_tokens=True)
    torch.manual_seed(1)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=True)
    expected = {"rows": len(tokenizer), "ids": {text: tokenizer(text)["input_ids"] for text in TEXTS}}
    for name, weight in (("embedding", model.get_input_embeddings().weight), ("head", model.get_output_embeddings().weight)):
        with torch.no_grad():
            mean = weight[:before].mean(0)
            assert (weight[before:] - mean).abs().max() < 1e-4, "Transformers does not draw around the mean any more"
            weight[before:] = mean
        expected[name + "_mean"] = mean.tolist()
    (HERE / "added_tokens.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer.chat_template = TEMPLATE
    rows = [json.loads(line) for line in open(HERE / "messages.jsonl", encoding="utf-8")]
    with tempfile.TemporaryDirectory() as folder:
        base.HERE = pathlib.Path(folder)
        model.save_pretrained(base.HERE / "model")
        tokenizer.save_pretrained(base.HERE / "model")
        expected["steps"] = base.train(rows, tokenizer, assistant_only_loss=True)
    with open(HERE / "added_tokens.json", "w", encoding="utf-8") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
