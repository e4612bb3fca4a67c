#!/usr/bin/env python3
"""Writes synthetic/: small tokenizers with every component that llmtrain reads, and synthetic/goldens.json: what the
Python packages make of tricky texts with them - ids, ids with special tokens, byte ranges, decoded text.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python make_tokenizer_goldens.py
"""

import base64
import io
import json
import os
import random

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "synthetic")
WORDS = ("the cat sat on a mat and the dog ran home to eat its food while it was raining in the old town of light "
         "under one green hill where nobody had ever seen any ship sail past before noon; don't we'll I've she's "
         "caf\u00e9 na\u00efve \u00fcber stra\u00dfe 123 42 2024 3.14 Hello World foo_bar x+y=z \u4f60\u597d \u4e16\u754c "
         "\u041f\u0440\u0438\u0432\u0435\u0442 \u3053\u3093\u306b\u3061\u306f").split()
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
SPACE = "\u2581"


def corpus():
    rng = random.Random(3)
    return [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(400)]


def texts():
    rng = random.Random(5)
    out = ["", " ", "  ", "\n", "Hello World", " the cat  sat\n\n on\ta mat. ", "don't WE'LL I've", "caf\u00e9 cafe\u0301 \u00fcBER",
           "\u4f60\u597d\u4e16\u754c hello \u4f60", "<s>the</s> cat", "the <mask> cat <mask>", "x<mask>y", "<pad><pad> the",
           "a\u0301\u0327b\u0327\u0301 \u1e9b\u0323 \ufb01 \u2460 \uff21 \u212b", "\uac00\u1100\u1161\u11a8 \ud55c\uae00",
           "  leading and trailing  ", SPACE + "the" + SPACE + SPACE + "cat", "\u00a0nbsp\u3000wide\u200bzero\ufeffbom",
           "1234567 3.14 2024-01-01 x1y2", "\U0001f600\U0001f469\u200d\U0001f680 the \U0001f1e9\U0001f1ea", "\r\nline\r\nend\r",
           "The Cat SAT \u0130stanbul \u1e9e \u03a3\u03a3", "foo_bar!?...x+y=z", "a" * 120, "tag<|x|>tag <|x|> tagged new", "NEW new News",
           "\ufffd \x01\x02 the \x7f", "e\u0301\u0301\u0301e \u05d0\u05b7 \u0600\u0661 \u00a9\u200d", "one  two   three    four",
           "0\u0966\u0967 \u2168 \u00bd \u0bf0", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947"]
    alphabet = WORDS + [" ", "  ", "\n", "<mask>", "<s>", "<|x|>", "\u0301", "\u200d", "\U0001f600", SPACE, ".", ",", "'", "new", "\u00a0"]
    for _ in range(25):
        out.append("".join(rng.choice(alphabet) + rng.choice(["", "", " "]) for _ in range(rng.randrange(1, 12))))
    return out


def bpe(normalizer=None, pre=None, decoder=None, post=None, specials=("<s>", "</s>"), size=420, alphabet=(), added=(), **options):
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    marks = {key: options[key] for key in ("continuing_subword_prefix", "end_of_word_suffix") if key in options}
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), initial_alphabet=list(alphabet),
                                  show_progress=False, **marks)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(list(added))
    if decoder:
        tokenizer.decoder = decoder
    if post:
        tokenizer.post_processor = post
    return tokenizer


def template(tokenizer, single="<s> $A </s>"):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair="$A $B", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")])
    return tokenizer


def word_level(pre=None, normalizer=None, **_):
    """Every piece is one token, so that the ranges are the pieces."""
    vocabulary = {w: i for i, w in enumerate(["[UNK]"] + sorted(set(WORDS)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    if pre:
        tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer


def unigram(pre, normalizer=None, byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False))
    if byte_fallback:
        model = json.loads(tokenizer.to_str())
        model["model"]["vocab"] += [["<0x%02X>" % b, -20.0] for b in range(256)]
        model["model"]["byte_fallback"] = True
        tokenizer = Tokenizer.from_str(json.dumps(model))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def byte_alphabet():
    return pre_tokenizers.ByteLevel.alphabet()


def llama2_like():
    tokenizer = bpe(normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]), size=300,
                    specials=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)], unk_token="<unk>",
                    fuse_unk=True, byte_fallback=True)
    # Bytes are tokens of the model, not added ones.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return template(tokenizer, "<s> $A")


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]", "<mask>"], show_progress=False))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


def charsmap():
    """A small set of rules, compiled by SentencePiece."""
    rules = ["FB01\t66 69", "2460\t31", "FF21\t41", "A0\t20", "3000\t20", "65 301\tE9", "61 301\tE1", "212B\tC5", "200B\t",
             "9\t20", "A\t20", "D\t20", "61 301 327\t62"]
    path = os.path.join(FOLDER, "rules.tsv")
    with open(path, "w", encoding="ascii") as file:
        file.write("".join(rule + "\n" for rule in rules))
    model = train_piece("unigram", normalization_rule_tsv=path)
    os.remove(path)
    return model


def train_piece(kind, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=out, model_type=kind,
                                             hard_vocab_limit=False, minloglevel=2, num_threads=1,
                                             **{"vocab_size": 180, **options})
    return out.getvalue()


def map_of(model):
    """The field precompiled_charsmap of normalizer_spec."""
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    return proto.normalizer_spec.precompiled_charsmap


def tokenizer_jsons(precompiled):
    pre, norm = pre_tokenizers, normalizers
    byte_level = dict(alphabet=byte_alphabet(), decoder=decoders.ByteLevel())
    added = [AddedToken("<mask>", lstrip=True, special=True), AddedToken("new", single_word=True),
             AddedToken("<|x|>", rstrip=True, normalized=False), AddedToken("Hello", normalized=True)]
    yield "gpt2", bpe(pre=pre.ByteLevel(add_prefix_space=False), post=processors.ByteLevel(trim_offsets=False), **byte_level)
    yield "gpt2_prefix_space", bpe(pre=pre.ByteLevel(add_prefix_space=True), post=processors.ByteLevel(trim_offsets=True),
                                   added=added, **byte_level)
    llama3 = bpe(pre=pre.Sequence([pre.Split(Regex(LLAMA3), "isolated"), pre.ByteLevel(False, use_regex=False)]),
                 ignore_merges=True, added=added, **byte_level)
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<s> $A", pair="$A $B", special_tokens=[("<s>", 0)])])
    yield "llama3", llama3
    yield "qwen2_nfc", bpe(norm.NFC(), pre.Sequence([pre.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
                                                     pre.ByteLevel(False, use_regex=False)]), **byte_level)
    roberta = bpe(pre=pre.ByteLevel(add_prefix_space=True), **byte_level)
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    yield "roberta", roberta
    yield "byte_level_normalizer", bpe(norm.Sequence([norm.NFC(), norm.ByteLevel()]), pre.Split(Regex(LLAMA3), "isolated"), **byte_level)
    yield "llama2", llama2_like()
    yield "metaspace_first", template(bpe(pre=pre.Metaspace(SPACE, "first", split=False), unk_token="<unk>", fuse_unk=False,
                                          specials=["<unk>", "<s>", "</s>"], decoder=decoders.Metaspace(SPACE, "first"), added=added))
    yield "metaspace_always", template(bpe(pre=pre.Metaspace(SPACE, "always"), unk_token="<unk>", fuse_unk=True,
                                           specials=["<unk>", "<s>", "</s>"], decoder=decoders.Metaspace(SPACE, "always")))
    yield "metaspace_never", bpe(norm.Sequence([norm.Strip(), norm.Lowercase()]), pre.Metaspace(SPACE, "never"), unk_token="<unk>",
                                 specials=["<unk>"], decoder=decoders.Metaspace(SPACE, "never"), added=added)
    yield "strip_metaspace_first", bpe(norm.Strip(True, False), pre.Metaspace(SPACE, "first"), unk_token="<unk>", specials=["<unk>"])
    yield "end_of_word", bpe(norm.Lowercase(), pre.WhitespaceSplit(), decoders.BPEDecoder("</w>"), unk_token="<unk>",
                             specials=["<unk>"], end_of_word_suffix="</w>")
    yield "continuing", bpe(norm.Sequence([norm.NFD(), norm.StripAccents()]), pre.Whitespace(), decoders.WordPiece("##", True),
                            unk_token="<unk>", specials=["<unk>"], continuing_subword_prefix="##")
    yield "bert", bert()
    yield "no_decoder", bpe(norm.Sequence([norm.Replace("\n", " "), norm.Replace(Regex(" {2,}"), " "), norm.Nmt()]), pre.Whitespace(),
                            unk_token="<unk>", specials=["<unk>"])
    yield "unigram", unigram(pre.Metaspace(SPACE, "always"), norm.NFKC())
    yield "unigram_bytes", unigram(pre.Metaspace(SPACE, "first"), norm.NFKD(), byte_fallback=True)
    yield "precompiled", unigram(pre.Metaspace(SPACE, "always"), norm.Sequence([norm.Precompiled(precompiled), norm.Replace(Regex(" {2,}"), " ")]))
    pieces = {
        "bert": pre.BertPreTokenizer(), "whitespace": pre.Whitespace(), "whitespace_split": pre.WhitespaceSplit(),
        "digits": pre.Digits(False), "digits_single": pre.Digits(True), "punctuation": pre.Punctuation(),
        "punctuation_contiguous": pre.Punctuation("contiguous"), "delimiter": pre.CharDelimiterSplit("a"),
        "fixed": pre.FixedLength(3),
        "sequence": pre.Sequence([pre.WhitespaceSplit(), pre.Punctuation(), pre.Digits(True)]),
        "metaspace": pre.Metaspace(SPACE, "first"),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        pieces["split_" + behavior] = pre.Split(" ", behavior)
        pieces["split_regex_" + behavior] = pre.Split(Regex(r"\p{N}{1,3}"), behavior)
        pieces["split_invert_" + behavior] = pre.Split(Regex(LLAMA3), behavior, invert=True)
    for name, step in pieces.items():
        yield "pieces_" + name, word_level(step)
    for name, step in {"nfc": norm.NFC(), "nfd": norm.NFD(), "nfkc": norm.NFKC(), "nfkd": norm.NFKD(), "lower": norm.Lowercase(),
                       "accents": norm.StripAccents(), "nmt": norm.Nmt(), "strip": norm.Strip(), "prepend": norm.Prepend("_x"),
                       "replace": norm.Replace("at", "@@@"), "bert": norm.BertNormalizer(), "byte_level": norm.ByteLevel(),
                       "precompiled": norm.Precompiled(precompiled)}.items():
        yield "text_" + name, word_level(pre.FixedLength(1), step)


def byte_ranges(text, offsets):
    starts = [0]
    for c in text:
        starts.append(starts[-1] + len(c.encode()))
    return [[starts[a], starts[b]] for a, b in offsets]


def cases_of(tokenizer):
    out = []
    for text in texts():
        plain = tokenizer.encode(text, add_special_tokens=False)
        case = {"ids": plain.ids, "special": tokenizer.encode(text).ids, "decoded": tokenizer.decode(plain.ids)}
        # Ranges of pieces that the library gives back unconverted are not ranges of the text.
        if all(a <= b <= len(text) for a, b in plain.offsets):
            case["ranges"] = byte_ranges(text, plain.offsets)
        out.append(case)
    return out


def piece_cases(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    out = []
    for text in texts():
        ids = processor.encode(text)
        spans = processor.encode(text, return_type="proto").pieces
        out.append({"ids": ids, "decoded": processor.decode(ids), "ranges": [[p.begin, p.end] for p in spans]})
    return out


def main():
    os.makedirs(FOLDER, exist_ok=True)
    goldens = {}
    rules = charsmap()
    for name, tokenizer in tokenizer_jsons(map_of(rules)):
        with open(os.path.join(FOLDER, name + ".json"), "w", encoding="utf-8") as file:
            file.write(tokenizer.to_str())
        goldens[name + ".json"] = cases_of(tokenizer)
    common = dict(user_defined_symbols=["<mask>", "new"], control_symbols=["<|x|>"])
    for name, model in {
            "unigram_rules": rules,
            "unigram_bytes": train_piece("unigram", normalization_rule_name="identity", byte_fallback=True, vocab_size=450, **common),
            "bpe_bytes": train_piece("bpe", normalization_rule_name="identity", byte_fallback=True, vocab_size=450,
                                     remove_extra_whitespaces=False, **common),
            "bpe_plain": train_piece("bpe", normalization_rule_name="identity", add_dummy_prefix=False, **common),
            "bpe_suffix": train_piece("bpe", normalization_rule_name="identity", treat_whitespace_as_suffix=True)}.items():
        with open(os.path.join(FOLDER, name + ".model"), "wb") as file:
            file.write(model)
        goldens[name + ".model"] = piece_cases(model)
    content = {"made_by": f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}", "texts": texts(),
               "tokenizers": goldens}
    with open(os.path.join(FOLDER, "goldens.json"), "w", encoding="ascii") as file:
        json.dump(content, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
