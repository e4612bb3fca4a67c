#!/usr/bin/env python3
"""Writes folder_goldens.json: the ids that Transformers' AutoTokenizer gives for tokenizer folders whose files beside
tokenizer.json (or vocab.json, or a SentencePiece model) add tokens, change flags or name special tokens; and
class_goldens.json: the same for folders whose tokenizer class has steps of its own.

    pip install transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    LLMTRAIN_DATA=... python make_folder_goldens.py
"""

import json
import os
import re
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import transformers
from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
SYNTHETIC = os.path.join(HERE, "synthetic")
TEXTS = ["Hello World", " the cat  sat\n on a mat ", "the[PAD]cat", "a <new> b", "x<new>y  <new>  z", "<new>the", "the <s>cat</s> sat",
         "<|im_start|>user\nhi<|im_end|>", "new newer anew new", "caf\u00e9<new>", "NEW [pad] <NEW>", "<a><b><c> <mask> the", "",
         "<|endoftext|>", "cat <unk> \u4f60<new>\u597d", "the\u2581cat <sep>  mat"]


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False, **flags}


FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
GPT2 = {"tokenizer_class": "GPT2TokenizerFast"}


def whole_decoder(base, tokens):
    """added_tokens_decoder as Transformers writes it: with the tokens of tokenizer.json."""
    with open(os.path.join(SYNTHETIC, base), encoding="utf-8") as stream:
        there = {str(t.pop("id")): t for t in json.load(stream)["added_tokens"]}
    return there | tokens


def cases():
    """name, base, {file: content} and, where sections of the base are others, those"""
    config, added, special = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
    both = [("gpt2.json", FAST), ("gpt2.json", GPT2), ("metaspace_first.json", FAST), ("unigram.json", FAST), ("llama2.json", FAST)]
    size = {"gpt2.json": 420, "metaspace_first.json": 420, "unigram.json": 105, "llama2.json": 420}
    for base, kind in both:
        tag = base.split(".")[0] + ("_class" if kind is GPT2 else "")
        n = vocabulary_size(base)
        yield tag + "_plain", base, {config: kind}
        yield tag + "_added", base, {config: kind, added: {"<new>": n, "<|im_start|>": n + 1, "<|im_end|>": n + 2}}
        yield tag + "_added_named", base, {config: {**kind, "pad_token": "[PAD]"}, added: {"[PAD]": n, "<new>": n + 1}}
        yield tag + "_added_order", base, {config: kind, added: {"<c>": n + 2, "<a>": n, "<b>": n + 1}}
        yield tag + "_added_gap", base, {config: kind, added: {"<new>": n + 5, "<a>": n + 9}}
        yield tag + "_added_known", base, {config: kind, added: {"the": 3, "cat": n}}
        yield tag + "_map", base, {config: kind, special: {"pad_token": "[PAD]", "eos_token": "</s>", "mask_token": token("<mask>", lstrip=True)}}
        yield tag + "_map_over_config", base, {config: {**kind, "pad_token": "<a>"}, special: {"pad_token": "<b>", "bos_token": "<s>"}}
        yield tag + "_map_flags", base, {config: kind, special: {"sep_token": token("<new>", rstrip=True, lstrip=True), "bos_token": token("<s>", rstrip=True)}}
        yield tag + "_map_additional", base, {config: kind, special: {"additional_special_tokens": ["<|im_start|>", "<new>"]}}
        yield tag + "_additional", base, {config: {**kind, "additional_special_tokens": ["<new>", "<a>"]}}
        yield tag + "_extra_list", base, {config: {**kind, "extra_special_tokens": ["<new>", "the", "<b>"]}}
        yield tag + "_extra_dict", base, {config: {**kind, "extra_special_tokens": {"image_token": "<new>", "boi_token": "<a>"}}}
        yield tag + "_extra_both", base, {config: {**kind, "extra_special_tokens": ["<new>"], "additional_special_tokens": ["<a>"]}}
        yield tag + "_own_name", base, {config: {**kind, "image_token": "<new>", "pad_token": "[PAD]"}}
        yield tag + "_eos_new", base, {config: {**kind, "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}}
        yield tag + "_named_object", base, {config: {**kind, "eos_token": {"__type": "AddedToken", **token("<new>", lstrip=True, normalized=True)}}}
        yield tag + "_decoder", base, {config: {**kind, "added_tokens_decoder": whole_decoder(base, {
            str(n + 1): token("<a>", special=True), str(n): token("<new>", lstrip=True, rstrip=True)})}}
        yield tag + "_decoder_flags", base, {config: {**kind, "added_tokens_decoder": whole_decoder(base, {
            str(i): token(t, **f) for i, (t, f) in enumerate([("<unk>" if base != "gpt2.json" else "<s>", {"special": True, "normalized": True, "rstrip": True})])})}}
        yield tag + "_decoder_word", base, {config: {**kind, "added_tokens_decoder": whole_decoder(base, {
            str(n): token("new", single_word=True), str(n + 1): token("NEW", normalized=True)})}}
        yield tag + "_decoder_hides", base, {config: {**kind, "added_tokens_decoder": whole_decoder(base, {str(n): token("<new>")})},
                                            added: {"<a>": n, "<b>": n + 1}, special: {"pad_token": "[PAD]"}}
        yield tag + "_decoder_gap", base, {config: {**kind, "added_tokens_decoder": whole_decoder(base, {str(n + 7): token("<new>"), str(n + 3): token("<a>")})}}
        yield tag + "_bos_eos", base, {config: {**kind, "bos_token": "<s>", "eos_token": "<s>", "add_bos_token": True, "add_eos_token": True}}
        yield tag + "_prefix_true", base, {config: {**kind, "add_prefix_space": True, "pad_token": "[PAD]"}}
        yield tag + "_prefix_false", base, {config: {**kind, "add_prefix_space": False}}
    yield "prefix_space_class", "gpt2_prefix_space.json", {config: GPT2}
    yield "prefix_space_fast", "gpt2_prefix_space.json", {config: {**FAST, "add_prefix_space": False}}
    yield "prefix_space_class_false", "gpt2_prefix_space.json", {config: {**GPT2, "add_prefix_space": False}}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    for scheme, legacy, prefix in (("first", False, False), ("never", False, True), ("first", True, True), ("always", False, True)):
        llama = {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": prefix, "legacy": legacy, "pad_token": "[PAD]"}
        patch = {"normalizer": None, "pre_tokenizer": {**metaspace, "prepend_scheme": scheme}}
        yield f"metaspace_{scheme}_{legacy}_{prefix}", "llama2.json", {config: llama}, patch
    yield "llama2_llama_false", "llama2.json", {config: {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": False}}
    yield "llama3_backend", "llama3.json", {config: {"tokenizer_class": "LlamaTokenizerFast", "pad_token": "[PAD]"}}
    yield "no_config", "gpt2.json", {added: {"<new>": vocabulary_size("gpt2.json")}}
    yield "bert_added", "bert.json", {config: FAST, added: {"<new>": vocabulary_size("bert.json")}, special: {"pad_token": "[PAD]"}}
    # A SentencePiece model: the texts of llmtrain are SentencePiece's, so only tokens between pieces are compared.
    n = vocabulary_size("bpe_bytes.model")
    llama = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    yield "spm_added", "bpe_bytes.model", {config: llama, added: {"[PAD]": n, "<a>": n + 1}}
    yield "spm_map", "bpe_bytes.model", {config: llama, special: {"pad_token": "[PAD]"}}
    yield "spm_decoder", "bpe_bytes.model", {config: {**llama, "added_tokens_decoder": {
        "0": token("<unk>", special=True), "1": token("<s>", special=True), "2": token("</s>", special=True), str(n): token("[PAD]", special=True)}}}
    yield "spm_legacy", "bpe_bytes.model", {config: {**llama, "legacy": True}, added: {"[PAD]": n, "<a>": n + 1}}


CLASS_TEXTS = ["Hello World", "", " lead", "trail  ", "a  b   c", "</s> the cat", "the</s>the <s>  cat", "\nfirst\n\n two", "cafe\u0301 A\u030a \u1100\u1161",
               "12345 x9", "\u65e5\u672c\u8a9e \u306e", "\U0001f642 ok", "Don't STOP it's", "\u2581the\u2581 cat", "\ttab\u00a0no", "the <x1> <x1>y </s>\n"]


def data_folder():
    return os.environ.get("LLMTRAIN_DATA", "")


def path_of(base):
    return os.path.join(data_folder() if "/" in base else SYNTHETIC, base)


def class_cases():
    """As cases()."""
    config, model = "tokenizer_config.json", "config.json"

    def named(name, **more):
        return {config: {"tokenizer_class": name, **more}}

    def template(token, number):
        return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}}}

    lower = {"normalizer": {"type": "Lowercase"}}
    bos = {"post_processor": template("<s>", 0)}
    for name in ("GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "GPTNeoXTokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast",
                 "Qwen3_5Tokenizer", "CohereTokenizerFast", "RobertaTokenizer", "BartTokenizerFast", "DebertaTokenizerFast"):
        yield name, "gpt2.json", named(name), lower | bos
        if not name.endswith("Fast"):
            yield name + "_prefix", "gpt2.json", named(name, add_prefix_space=True), bos
    yield "roberta_named", "gpt2.json", named("RobertaTokenizer", cls_token="<x1>", sep_token="</s>", trim_offsets=False), lower
    for legacy in (None, False, True):
        for prefix in (None, False, True):
            more = {k: v for k, v in (("legacy", legacy), ("add_prefix_space", prefix)) if v is not None}
            yield f"llama_{legacy}_{prefix}", "llama2.json", named("LlamaTokenizer", **more)
    yield "llama_bos", "llama2.json", named("LlamaTokenizerFast", add_bos_token=False, add_eos_token=True, legacy=None, add_prefix_space=None)
    yield "llama_no_post", "llama2.json", named("LlamaTokenizer", add_bos_token=True), {"post_processor": None}
    yield "code_llama", "llama2.json", named("CodeLlamaTokenizer")
    yield "code_llama_prefix", "llama2.json", named("CodeLlamaTokenizerFast", add_prefix_space=False, prefix_token="<x1>")
    yield "gemma", "llama2.json", named("GemmaTokenizerFast")
    yield "bert", "bert.json", named("BertTokenizer", do_lower_case=False, tokenize_chinese_chars=False)
    yield "bert_accents", "bert.json", named("DistilBertTokenizerFast", strip_accents=False)
    # The type of the model decides, or not.
    for kind in ("gpt2", "gpt_neox", "qwen2", "qwen3", "llama", "cohere", "phi3"):
        yield "type_" + kind, "gpt2.json", {model: {"model_type": kind}}, lower | bos
    yield "type_class_wrong", "gpt2.json", named("LlamaTokenizerFast") | {model: {"model_type": "qwen2"}}, lower
    yield "type_class_backend", "llama2.json", named("LlamaTokenizer") | {model: {"model_type": "mistral"}}
    yield "type_class_kept", "llama2.json", named("LlamaTokenizer") | {model: {"model_type": "qwen3"}}
    yield "type_class_bytes", "gpt2.json", named("LlamaTokenizer") | {model: {"model_type": "llama"}}, lower
    yield "type_class_unknown", "gpt2.json", named("FooTokenizer") | {model: {"model_type": "gpt2"}}, lower
    yield "type_of_model_class", "gpt2.json", {model: {"model_type": "llama", "tokenizer_class": "GPT2TokenizerFast"}}, lower
    # Real ones, of the shared data.
    with open(os.path.join(data_folder(), "tokenizer/llama2/tokenizer_config.json"), encoding="utf-8") as stream:
        published = json.load(stream)
    yield "real_llama2", "tokenizer/llama2/tokenizer.json", {config: published}
    yield "real_gpt2", "tokenizer/gpt2/tokenizer.json", {model: {"model_type": "gpt2"}}
    yield "real_gpt2_qwen", "tokenizer/gpt2/tokenizer.json", named("Qwen2TokenizerFast")
    # Tokens.
    x1 = {"__type": "AddedToken", **token("<x1>", lstrip=True, rstrip=True)}
    yield "decoder_lacks", "gpt2.json", named("GPT2Tokenizer", added_tokens_decoder={"0": token("<s>", special=True)})
    yield "flags_plain", "gpt2.json", named("Qwen2Tokenizer", eos_token="</s>", added_tokens_decoder={"1": token("</s>", special=True, lstrip=True, rstrip=True)})
    yield "flags_again", "gpt2.json", named("CohereTokenizer", extra_special_tokens=["</s>"], added_tokens_decoder={"1": token("</s>", special=True, lstrip=True)})
    for name in ("PreTrainedTokenizerFast", "GPT2Tokenizer"):
        yield name + "_twice", "gpt2.json", named(name, bos_token=x1, eos_token="<x1>"), lower
        yield name + "_twice_other", "gpt2.json", named(name, bos_token="<x1>", eos_token=x1), lower
        yield name + "_twice_extra", "gpt2.json", named(name, pad_token=x1, extra_special_tokens=["<x1>"]), lower
        yield name + "_split", "gpt2.json", named(name, pad_token="<x1>", split_special_tokens=True), lower
        yield name + "_split_extra", "gpt2.json", named(name, additional_special_tokens=[x1, "the"], split_special_tokens=True), lower


def vocabulary_size(base):
    if base.endswith(".model"):
        import sentencepiece
        return sentencepiece.SentencePieceProcessor(model_file=os.path.join(SYNTHETIC, base)).get_piece_size()
    return tokenizers.Tokenizer.from_file(os.path.join(SYNTHETIC, base)).get_vocab_size()


def write(file, texts, folders):
    out = {}
    for name, base, files, *patches in folders:
        patch = patches[0] if patches else {}
        folder = tempfile.mkdtemp()
        shutil.copy(path_of(base), os.path.join(folder, "tokenizer.json" if base.endswith(".json") else "tokenizer.model"))
        if patch:
            with open(path_of(base), encoding="utf-8") as stream:
                document = json.load(stream) | patch
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as stream:
                json.dump(document, stream)
        for path, content in files.items():
            with open(os.path.join(folder, path), "w", encoding="utf-8") as stream:
                json.dump(content, stream)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            print(name, "fails:", str(error)[:150])
            continue
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        if base.endswith(".model"):  # null: Transformers' own reading of the pieces is not SentencePiece's
            ids = [None if re.search("new|^ |> ", text) else one for text, one in zip(texts, ids)]
        named = {key: getattr(tokenizer, key + "_token_id") for key in ("bos", "eos", "pad")}
        out[name] = {"base": base, "patch": patch, "files": files, "ids": ids, "size": len(tokenizer), **named,
                     "special": tokenizer.encode("the cat"), "class": type(tokenizer).__name__}
        shutil.rmtree(folder)
    content = {"made_by": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}", "texts": texts, "folders": out}
    with open(os.path.join(HERE, file), "w", encoding="ascii") as stream:
        json.dump(content, stream, separators=(",", ":"))
        stream.write("\n")


def main():
    write("folder_goldens.json", TEXTS, cases())
    write("class_goldens.json", CLASS_TEXTS, class_cases())


if __name__ == "__main__":
    main()
