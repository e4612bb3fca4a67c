"""What Transformers makes of tiny models with labels, for tests/decks/classification_test.cpp.

Writes beside this file: a folder in bf16 for each model (text_llama, pair..., see MODELS; without the tokenizer, which is
that of ../sft/model), PEFT's adapters before the first step, the rows (texts.jsonl, pairs.jsonl, several.jsonl,
numbers.jsonl, words.jsonl), and classification.json: for each case the outputs of the rows before and after ten steps of
AdamW, with the losses and gradient norms of these steps of four rows; of two also with adapters, and with adapters over
matrices in bitsandbytes' nf4 ("qlora"); "scores": accuracy, precision, recall and F1 of
scikit-learn, and its confusion matrix, of the outputs before.

    python make_classification_goldens.py

Versions: torch 2.15.0 (CPU), transformers 5.23.0, peft 0.21.2, bitsandbytes 0.50.2, scikit-learn 1.9.1, one thread, fp32.
"""
import json
import pathlib
import random
import re
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support
from transformers import (AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification,
                          AutoTokenizer, GPT2Config, LlamaConfig, Qwen2Config)

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from make_qlora_goldens import dequantised  # noqa: E402

TOKENIZER = HERE.parent / "sft" / "model"
STEPS, ROWS = 10, 4
MOODS, TOPICS, ENTITIES = ["bad", "good", "neutral"], ["cost", "food", "staff"], ["O", "B-PER", "I-PER", "B-LOC"]


def write_rows():
    numbers = random.Random(3)
    things, moods = ["soup", "room", "film", "tram", "book"], {"bad": "dull", "good": "fine", "neutral": "usual"}
    def text(mood):
        return f"The {numbers.choice(things)} was {numbers.choice(['rather', 'very', 'so'])} {moods[mood]} today."
    labels = [numbers.choice(MOODS) for _ in range(24)]
    texts = [{"text": text(label), "label": label} for label in labels]
    pairs = [{"text": text(label), "text_pair": text("good"), "label": MOODS.index(label)} for label in labels]
    several = [{"text": text(numbers.choice(MOODS)), "label": [t for t in TOPICS if numbers.random() < 0.4]}
               for _ in range(24)]
    floats = [{"text": text(numbers.choice(MOODS)), "label": round(numbers.uniform(-1, 2), 3)} for _ in range(24)]
    names, places, words = ["Ada", "Karl", "Mina"], ["Oslo", "Lima"], []
    for _ in range(24):
        row = [(numbers.choice(names), "B-PER"), (numbers.choice(names), "I-PER"), ("went", "O"), ("to", "O"),
               (numbers.choice(places), "B-LOC"), (".", "O")]
        if numbers.random() < 0.5:
            row = row[:1] + row[2:]
        words.append({"tokens": [w for w, _ in row], "labels": [label for _, label in row]})
    for name, rows in {"texts": texts, "pairs": pairs, "several": several, "numbers": floats, "words": words}.items():
        content = "".join(json.dumps(row) + "\n" for row in rows)
        (HERE / f"{name}.jsonl").write_text(content, encoding="utf-8", newline="\n")
    return {"texts": texts, "pairs": pairs, "several": several, "numbers": floats, "words": words}


SHAPES = {
    "llama": lambda: LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2, max_position_embeddings=128),
    "qwen2": lambda: Qwen2Config(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2, max_position_embeddings=128),
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0, embd_pdrop=0,
                               attn_pdrop=0),
}
# name: family, rows, labels, problem
CASES = {
    "text_llama": ("llama", "texts", MOODS, "single_label_classification"),
    "text_gpt2": ("gpt2", "texts", MOODS, "single_label_classification"),
    "text_qwen2": ("qwen2", "texts", MOODS, "single_label_classification"),
    "pair_llama": ("llama", "pairs", MOODS, "single_label_classification"),
    "several_llama": ("llama", "several", TOPICS, "multi_label_classification"),
    "number_llama": ("llama", "numbers", ["LABEL_0"], "regression"),
    "words_llama": ("llama", "words", ENTITIES, None),
    "words_gpt2": ("gpt2", "words", ENTITIES, None),
    "words_qwen2": ("qwen2", "words", ENTITIES, None),
}


def load(path, words):
    kind = AutoModelForTokenClassification if words else AutoModelForSequenceClassification
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def make_model(name, family, labels, problem, tokenizer):
    torch.manual_seed(sum(name.encode()))
    config = SHAPES[family]()
    config.vocab_size, config.bos_token_id, config.eos_token_id, config.pad_token_id = 321, 1, 317, 318
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
    config.problem_type = problem
    kind = AutoModelForTokenClassification if problem is None else AutoModelForSequenceClassification
    model = kind.from_config(config)
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.15
    model.to(torch.bfloat16).save_pretrained(HERE / name)


def encode(row, tokenizer, labels, problem):
    """Input ids, and what the model takes as labels."""
    if problem is None:
        ids, targets = [], []
        for i, (word, label) in enumerate(zip(row["tokens"], row["labels"])):
            pieces = tokenizer((" " if i else "") + word)["input_ids"]
            ids += pieces
            targets += [labels.index(label)] + [-100] * (len(pieces) - 1)
        assert ids == tokenizer(" ".join(row["tokens"]))["input_ids"]
        return torch.tensor([ids]), torch.tensor([targets])
    ids = tokenizer(row["text"], row["text_pair"]) if "text_pair" in row else tokenizer(row["text"])
    label = row["label"]
    if problem == "multi_label_classification":
        target = torch.tensor([[float(name in label) for name in labels]])
    elif problem == "regression":
        target = torch.tensor([label])
    else:
        target = torch.tensor([labels.index(label) if isinstance(label, str) else label])
    return torch.tensor([ids["input_ids"]]), target


def outputs(model, rows):
    with torch.no_grad():
        found = []
        for ids, target in rows:
            logits = model(input_ids=ids).logits[0]
            found.append((logits[target[0] != -100] if target.dim() == 2 and logits.dim() == 2 else logits).tolist())
        return found


def train(model, rows, words):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    result = {"before": outputs(model, rows), "loss": [], "grad_norm": []}
    for step in range(STEPS):
        batch = [rows[(step * ROWS + i) % len(rows)] for i in range(ROWS)]
        weights = [float((target != -100).sum()) if words else 1.0 for _, target in batch]
        optimizer.zero_grad()
        total = 0.0
        for (ids, target), weight in zip(batch, weights):
            loss = model(input_ids=ids, labels=target).loss * (weight / sum(weights))
            loss.backward()
            total += float(loss)
        norm = torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        result["loss"].append(total)
        result["grad_norm"].append(float(norm))
    result["after"] = outputs(model, rows)
    return result


def make_adapter(name, model, words):
    torch.manual_seed(7)
    targets = ["c_attn", "c_proj"] if "gpt2" in name else ["q_proj", "v_proj", "down_proj"]
    lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets,
                                            task_type="TOKEN_CLS" if words else "SEQ_CLS"))
    folder = HERE / f"adapter_{name}"
    lora.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = None
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    return folder


def in_nf4(model):
    """The model with the values that bitsandbytes' nf4 keeps of the matrices of its layers, in blocks of 64."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and re.search(r"layers|\.h\.", name):
            # GPT-2 stores its matrices transposed; blocks are of the rows that bitsandbytes' Linear4bit would have
            rows = weight.data.T if ".h." in name else weight.data
            values = torch.from_numpy(dequantised(rows.contiguous().numpy(), "nf4", 64, False))
            weight.data = (values.T if ".h." in name else values).contiguous()
    return model


def scores(result, rows, words):
    true, predicted = [], []
    for found, (_, target) in zip(result["before"], rows):
        true += target[target != -100].tolist()
        predicted += [max(range(len(o)), key=o.__getitem__) for o in (found if words else [found])]
    p, r, f, _ = precision_recall_fscore_support(true, predicted, zero_division=0)
    return {"accuracy": accuracy_score(true, predicted), "precision": list(p), "recall": list(r), "f1": list(f),
            "macro_f1": float(f.mean()), "confusion": confusion_matrix(true, predicted).tolist()}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    all_rows, tokenizer, result = write_rows(), AutoTokenizer.from_pretrained(TOKENIZER), {}
    for name, (family, kind, labels, problem) in CASES.items():
        make_model(name, family, labels, problem, tokenizer)
        rows, words = [encode(row, tokenizer, labels, problem) for row in all_rows[kind]], problem is None
        result[name] = train(load(HERE / name, words), rows, words)
        if problem in (None, "single_label_classification"):
            result[name]["scores"] = scores(result[name], rows, words)
        if name in ("text_llama", "words_gpt2"):
            folder = make_adapter(name, load(HERE / name, words), words)
            for way, base in {"adapter": load(HERE / name, words), "qlora": in_nf4(load(HERE / name, words))}.items():
                model = PeftModel.from_pretrained(base, folder, is_trainable=True)
                result[f"{way}_{name}"] = train(model, rows, words)
    with open(HERE / "classification.json", "w", encoding="utf-8") as file:
        cases = (f"{json.dumps(name)}: {json.dumps(case)}" for name, case in result.items())
        file.write("{" + ",\n".join(cases) + "}\n")


if __name__ == "__main__":
    main()
