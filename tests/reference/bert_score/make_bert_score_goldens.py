"""Makes two tiny encoders with random weights, bert/ and roberta/, and two tiny decoders, gpt2/ and llama/, and writes
goldens.json: BERTScore of odd segments by the package bert-score under them.

The package cuts the layers of a Llama and keeps its final norm. It does not know those of GPT-2, which are cut likewise.
It takes texts of two tokens for empty ones, which is right for encoders alone: the segments of decoders have none.

    python make_bert_score_goldens.py

bert-score 0.3.13, torch 2.15.0, transformers 5.24.0, Python 3.11.
"""

import importlib.metadata
import json
import pathlib
import sys

import bert_score
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (AutoModel, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast, RobertaConfig, RobertaModel)

HERE = pathlib.Path(__file__).parent
SEGMENTS = [
    ("the cat sat on the mat", ["the cat is on the mat", "a cat sat on a mat."]),
    ("The Cat", ["the cat"]),
    ("dog", ["cat"]),
    ("", ["the cat"]),
    ("the dog", [""]),
    ("caf\u00e9 au lait \u2603", ["cafe au lait"]),
    ("the the the the", ["the"]),
    ("a dog sat, and a cat sat; the mat is red!  ", ["  a cat sat and a dog sat."]),
    ("red " * 60, ["red " * 50]),
]
DECODER_SEGMENTS = [
    ("the cat sat on the mat", ["the cat is on the mat", "a cat sat on a mat."]),
    ("The Cat", ["the cat sat"]),
    ("dog", ["dogs"]),
    ("caf\u00e9 au lait \u2603", ["cafe au lait"]),
    ("the the the the", ["the the the"]),
    ("a dog sat, and a cat sat; the mat is red!  ", ["  a cat sat and a dog sat."]),
    ("red " * 60, ["red " * 50]),
]
WORDS = "the cat dog sat on mat is a and red au lait cafe ##s ##e . , ; ! c f".split()


def randomise(model):
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn_like(parameter) * scale + (1 if name.endswith("LayerNorm.weight") else 0))
    return model.eval()


def save_bert(folder):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                            pad_token="[PAD]", mask_token="[MASK]", model_max_length=40).save_pretrained(folder)
    config = BertConfig(vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
                        intermediate_size=24, max_position_embeddings=40)
    randomise(BertModel(config, add_pooling_layer=False)).save_pretrained(folder)


def save_roberta(folder):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("c", "a"), ("ca", "t"), ("\u0120", "cat")]
    pieces = special + letters + ["".join(pair) for pair in merges] + ["<mask>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", cls_token="<s>",
                            sep_token="</s>", unk_token="<unk>", pad_token="<pad>", mask_token="<mask>",
                            model_max_length=60).save_pretrained(folder)
    config = RobertaConfig(vocab_size=len(pieces), hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                           intermediate_size=24, max_position_embeddings=62, type_vocab_size=1, layer_norm_eps=1e-5,
                           pad_token_id=1, bos_token_id=0, eos_token_id=2)
    randomise(RobertaModel(config, add_pooling_layer=False)).save_pretrained(folder)


def save_decoder(folder, model, bos):
    """Saves a model and a byte-level tokenizer, with a BOS token before a text or a space."""
    special = ["<s>"] if bos else ["<|endoftext|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("c", "a"), ("ca", "t"), ("\u0120", "cat")]
    pieces = special + letters + ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not bos)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[0],
                            pad_token=special[0], model_max_length=120).save_pretrained(folder)
    randomise(model(len(pieces))).save_pretrained(folder)


def gpt2(vocabulary):
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=120, n_embd=16, n_layer=3, n_head=2,
                                      bos_token_id=0, eos_token_id=0))


def llama(vocabulary):
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, hidden_size=16, intermediate_size=24,
                                        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                        max_position_embeddings=120, bos_token_id=0, eos_token_id=0))


def build_empty(self, ids):
    """What the package asks of a tokenizer for an empty text, which Transformers 5 lacks."""
    return [self.cls_token_id, *ids, self.sep_token_id]


def cut_layers(model_type, number, all_layers=None):
    """The package's get_model of decoders."""
    model = AutoModel.from_pretrained(model_type)
    layers = "h" if hasattr(model, "h") else "layers"
    setattr(model, layers, getattr(model, layers)[:number])
    model.config.num_hidden_layers = number
    return model.eval()


def score(model, segments, layers, idf, baseline, batch_size):
    precision, recall, f1 = bert_score.score(
        [s[0] for s in segments], [s[1] for s in segments], model_type=str(HERE / model), num_layers=layers, idf=idf,
        device="cpu", lang="en", rescale_with_baseline=baseline, nthreads=0, use_fast_tokenizer=True,
        batch_size=batch_size, baseline_path=str(HERE / "baseline.tsv") if baseline else None)
    rows = torch.stack([precision, recall, f1], 1)
    return dict(model=model, layers=layers, idf=idf, baseline=baseline,
                scores=[[round(x, 6) for x in row] for row in rows.tolist()])


def main():
    PreTrainedTokenizerFast.build_inputs_with_special_tokens = build_empty
    save_bert(HERE / "bert")
    save_roberta(HERE / "roberta")
    save_decoder(HERE / "gpt2", gpt2, bos=False)
    save_decoder(HERE / "llama", llama, bos=True)
    (HERE / "baseline.tsv").write_text("LAYER,P,R,F\n0,0.1,0.2,0.3\n1,0.25,0.3,0.35\n2,0.4,0.45,0.5\n3,0.5,0.55,0.6\n")
    switches = (False, True)
    cases = [score(model, SEGMENTS, layers, idf, baseline, 64)
             for model, layers in (("bert", 3), ("bert", 1), ("roberta", 2)) for idf in switches for baseline in switches]
    known = [score("llama", DECODER_SEGMENTS, layers, False, False, 1)["scores"] for layers in (2, 1)]
    sys.modules["bert_score.score"].get_model = cut_layers
    decoders = [score(model, DECODER_SEGMENTS, layers, idf, False, 1)
                for model, layers in (("gpt2", 3), ("gpt2", 2), ("llama", 2), ("llama", 1)) for idf in switches]
    assert known == [case["scores"] for case in decoders[4::2]], "cut_layers is not the package's cut"
    text = [",\n".join(json.dumps(case) for case in part) for part in (cases, decoders)]
    (HERE / "goldens.json").write_text(
        f'{{"versions": "bert-score {importlib.metadata.version("bert-score")}, torch {torch.__version__}",\n'
        f'"segments": {json.dumps(SEGMENTS)},\n"cases": [\n{text[0]}\n],\n'
        f'"decoder_segments": {json.dumps(DECODER_SEGMENTS)},\n"decoder_cases": [\n{text[1]}\n]}}\n')


if __name__ == "__main__":
    main()
