"""Scores of texts by sacreBLEU, rouge-score and the formulas of SQuAD's script, for tests/scores/goldens_test.cpp.

Writes goldens.json: segments, the scores of each setting for every segment and for the corpora "one" (the first
reference of each), "all" (all references) and "short" (two segments without common 4-grams), signatures, stems of NLTK's Porter stemmer, and with LLMTRAIN_DATA the
scores of the files in $LLMTRAIN_DATA/metrics. Numbers have 12 digits.
Made with sacrebleu 2.6.0, rouge-score 0.1.2, nltk 3.10.4, regex 2026.11.19, Python 3.11:

    pip install sacrebleu==2.6.0 rouge-score==0.1.2 nltk==3.10.4 && python make_score_goldens.py
"""
import collections
import json
import os
import pathlib
import re
import string

from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

# (hypothesis, references)
SEGMENTS = [
    ("", [""]),
    ("", ["not empty"]),
    ("not empty", [""]),
    ("   ", ["\t"]),
    ("word", ["word"]),
    ("word", ["other"]),
    ("a", ["b", "a"]),
    ("the", ["The"]),
    ("The cat sat on the mat.", ["The cat sat on the mat."]),
    ("The cat sat on the mat .", ["the cat sat on the mat."]),
    ("the the the the the the the", ["The cat is on the mat.", "There is a cat on the mat."]),
    ("It is a guide to action which ensures that the military always obeys the commands of the party.",
     ["It is a guide to action that ensures that the military will forever heed Party commands.",
      "It is the guiding principle which guarantees the military forces always being under the command of the Party."]),
    ("four tokens are here", ["four tokens are there", "four tokens here", "here are four tokens now"]),
    ("one two three", ["one two", "one two three four"]),
    ("Costs $1,234.56 (about 3.5%), i.e. 10-20 times 1990-style prices...", ["Cost $1,234.56, about 3.5%; i.e. 10 - 20 times!"]),
    ("&quot;Fish &amp; chips&quot; &lt;b&gt; &amp;lt; <skipped>end", ['"Fish & chips" <b> < end']),
    ("x..y,,z ,1.,2.-3-4", ["x . . y , , z , 1 . , 2. - 3 - 4"]),
    ("{a}~[b]^`c` #d@e/f\\g|h", ["{ a } ~ [ b ] ^ ` c ` # d @ e / f \\ g | h"]),
    ("Don't can't won't-do it's o'clock", ["Do n't ca n't wo n't do its o clock"]),
    ("trailing spaces here   \t ", ["trailing spaces here"]),
    ("  leading and\u00a0no-break\u2003spaces", ["leading and no-break spaces"]),
    ("carriage return\r", ["carriage return"]),
    ("file\x1cseparators\x1fare\x85white\u2028space", ["file separators are white space"]),
    ("zero\u200bwidth \u200d joiners\ufeff", ["zero width joiners"]),
    ("\u0441\u043b\u043e\u0432\u0430, \u043c\u0438\u0440! \u0414\u0430.", ["\u0421\u043b\u043e\u0432\u0430 \u043c\u0438\u0440, \u0434\u0430."]),
    ("\u732b\u5728\u57ab\u5b50\u4e0a\u3002", ["\u732b\u5750\u5728\u57ab\u5b50\u4e0a\u3002", "\u57ab\u5b50\u4e0a\u6709\u732b\u3002"]),
    ("\u30c6\u30b9\u30c8\u3001\u3067\u3059\uff01", ["\u30c6\u30b9\u30c8 \u3067\u3059!"]),
    ("\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.", ["\ud55c\uad6d\uc5b4 \ubb38\uc7a5."]),
    ("\u0647\u0630\u0627 \u0646\u0635\u061f \u0661\u0662\u066b\u0665", ["\u0647\u0630\u0627 \u0646\u0635 \u061f \u0661\u0662 \u0665"]),
    ("\u0939\u093f\u0928\u094d\u0926\u0940 \u092a\u093e\u0920\u0964", ["\u0939\u093f\u0928\u094d\u0926\u0940 \u0964"]),
    ("caf\u00e9 na\u00efve r\u00e9sum\u00e9", ["cafe\u0301 nai\u0308ve re\u0301sume\u0301"]),
    ("\u00c5NGSTR\u00d6M \u212b \u212aelvin", ["\u00e5ngstr\u00f6m \u00e5 kelvin"]),
    ("\u0130stanbul DI\u015eI I\u0131", ["istanbul di\u015fi ii", "i\u0307stanbul"]),
    ("\u039f\u0394\u039f\u03a3 \u03a3\u0391\u03a3 \u03a3 A\u03a3'", ["\u03bf\u03b4\u03bf\u03c2 \u03c3\u03b1\u03c2 \u03c3 a\u03c2'"]),
    ("STRA\u00dfE \u1e9e \ufb01ne \u01c5", ["stra\u00dfe \u00df fine \u01c6"]),
    ("\U0001f600\U0001f44d\U0001f3fd ok \U0001f468\u200d\U0001f469\u200d\U0001f467", ["\U0001f600 \U0001f44d ok \U0001f468"]),
    ("\u20ac5 \u00b12\u00b0 \u00bd \u2460 \u216b x\u00b2 \u2260 \u2192", ["\u20ac 5 \u00b1 2 \u00b0 \u00bd \u2460 \u216b x\u00b2 = ->"]),
    ("\u00abquoted\u00bb \u2018single\u2019 \u201cdouble\u201d \u2014dash\u2026 1\u20132 3\u20ac4", ["\"quoted\" 'single' \"double\" - dash ... 1-2 3 4"]),
    ("in 2015. In 1,5 a.5 5.a (5)", ["in 2015 . In 1 , 5 a . 5 5 . a ( 5 )"]),
    ("a.b.c..d", ["a b c d"]),
    ("an apple, the pear; A plum", ["apple pear plum", "an apple"]),
    ("the-a an_the a\u0301 \u00e0 the\u0301 thea", ["a", "a\u0301 \u00e0 thea"]),
    ("42", ["forty-two", "42."]),
    ("Denver Broncos", ["The Denver Broncos!", "Carolina Panthers", "Broncos Denver"]),
    ("!!!", ["???"]),
    ("police killed the gunman", ["the gunman police killed", "police kill the gunman", "gunman the killed police"]),
    ("a b c d e f g", ["g f e d c b a", "a c e g b d f"]),
    ("w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", ["w1 w2 w3 w4 w5"]),
    ("first line.\n\nsecond line", ["second line\nfirst line.", "first-\nline <skipped>"]),
    ("x y x y x y", ["y x y x y x\nx x x", "x y\nx y\nz"]),
    ("running runs runner easily fairly generalizations happiness skies dying", ["run ran runners easy fair generalize happy sky die"]),
    ("nationally conditional hesitancy digitizer radically hopefulness geology agreed", ["national condition hesitate digit radical hope geologic agree"]),
    ("(hi) 'quoted' end. -x- ... .a", ["( hi ) quoted end -x .. a."]),
    ("\u0661 digits \u0967\u0968 mixed1 \u4e00\u4e8c", ["1 digits 12 mixed 1 \u4e00 \u4e8c"]),
    ("word " * 70 + "end", ["word " * 65 + "stop", "word"]),
    ("A\u0345\u0308 \u0387 \u00b7 \ud7a3\u1112", ["a \u0387 \ud7a3"]),
]

BLEUS = {f"bleu {tokenizer}{' lowercase' if lower else ''}": dict(tokenize=tokenizer, lowercase=lower)
         for tokenizer in ("13a", "intl", "none", "char") for lower in (False, True)}
BLEUS |= {"bleu floor": dict(smooth_method="floor"), "bleu floor 0.05": dict(smooth_method="floor", smooth_value=0.05),
          "bleu add-k": dict(smooth_method="add-k"), "bleu add-k 0.5": dict(smooth_method="add-k", smooth_value=0.5),
          "bleu not smoothed": dict(smooth_method="none")}
CHRFS = {"chrf": {}, "chrf lowercase": dict(lowercase=True), "chrf++": dict(word_order=2)}
ROUGES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def digits(value):
    return float(f"{value:.12g}")


# The functions of evaluate-v2.0.py.
def normalize_answer(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact(reference, hypothesis):
    return int(normalize_answer(reference) == normalize_answer(hypothesis))


def f1(reference, hypothesis):
    gold, found = normalize_answer(reference).split(), normalize_answer(hypothesis).split()
    if not gold or not found:
        return int(gold == found)
    common = sum((collections.Counter(gold) & collections.Counter(found)).values())
    if common == 0:
        return 0
    precision, recall = common / len(found), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def sacrebleu_scores(make, options, corpora):
    result = {"signature": {}, "corpus": {}}
    if make is BLEU:
        single = BLEU(effective_order=True, **options)
    else:
        single = make(**options)
    for name, segments in corpora.items():
        result[name] = [digits(single.sentence_score(h, r).score) for h, r in segments]
        metric = make(**options)
        width = max(len(r) for _, r in segments)
        references = [[r[i] if i < len(r) else None for _, r in segments] for i in range(width)]
        result["corpus"][name] = digits(metric.corpus_score([h for h, _ in segments], references).score)
        result["signature"][name] = str(metric.get_signature())
    return result


def mean_scores(corpora, score, scale=1.0):
    result = {"corpus": {}}
    for name, segments in corpora.items():
        values = [score(h, r) for h, r in segments]
        result[name] = [digits(scale * value) for value in values]
        result["corpus"][name] = digits(scale * sum(values) / len(values))
    return result


def all_scores(corpora):
    """Scores by the name of a setting, each with its metric and options."""
    scores = {}
    for name, options in BLEUS.items():
        scores[name] = {"metric": "bleu", **options, **sacrebleu_scores(BLEU, options, corpora)}
    for name, options in CHRFS.items():
        scores[name] = {"metric": name.split()[0], "lowercase": "lowercase" in options, **sacrebleu_scores(CHRF, options, corpora)}
    for stemmer in (False, True):
        for kind in ROUGES:
            scorer = RougeScorer([kind], use_stemmer=stemmer)
            scores[kind + (" stemmer" if stemmer else "")] = {"metric": kind, "stemmer": stemmer, **mean_scores(
                corpora, lambda h, r: scorer.score_multi(r, h)[kind].fmeasure)}
    scores["exact"] = {"metric": "exact_match", **mean_scores(corpora, lambda h, r: max(exact(x, h) for x in r), 100)}
    scores["f1"] = {"metric": "token_f1", **mean_scores(corpora, lambda h, r: max(f1(x, h) for x in r), 100)}
    return scores


def fixtures(folder):
    """Corpus scores of the public files, by hypothesis and reference."""
    pairs = [("wmt15_en_ru_100/google.ru", "wmt15_en_ru_100/ref.ru"),
             ("wmt15_en_ru_100/newstest-2015-100sents.en-ru.google.ru", "wmt15_en_ru_100/newstest-2015-100sents.en-ru.ref.ru"),
             ("rouge155/prediction.txt", "rouge155/target.txt")]
    result = []
    for hypothesis, reference in pairs:
        lines = [(folder / name).read_text(encoding="utf-8").removesuffix("\n").split("\n") for name in (hypothesis, reference)]
        scores = all_scores({"one": [(h, [r]) for h, r in zip(*lines, strict=True)]})
        result.append({"hypothesis": hypothesis, "reference": reference,
                       "corpus": {name: values["corpus"]["one"] for name, values in scores.items()}})
    return result


def stems():
    """Words with each of the suffixes that a rule names, and the irregular ones."""
    suffixes = """sses ies ss s eed ed ing ied y ational tional enci anci izer bli abli alli entli eli ousli ization ation ator
    alism iveness fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able
    ible ant ement ment ent ion sion tion ou ism ate iti ous ive ize e ll at bl iz tt ying yed""".split()
    words = "sky skies dying lying tying news innings inning outings outing cannings canning howe proceed exceed succeed".split()
    words += "yyyy yyy syzygy by toy ies ied died spied feed agreed controll roll a is 1234s b2ing rate cease".split()
    words += [begin + suffix for begin in ("t", "at", "hop", "tay", "fail", "relat", "oscill", "gener", "yx") for suffix in suffixes]
    stemmer = PorterStemmer()
    return {word: stemmer.stem(word) for word in words}


def main():
    one = [(h, r[:1]) for h, r in SEGMENTS]
    corpora = {"one": one, "all": SEGMENTS, "short": one[12:14]}
    goldens = {"segments": SEGMENTS, "scores": all_scores(corpora), "stems": stems(), "fixtures": []}
    if "LLMTRAIN_DATA" in os.environ:
        goldens["fixtures"] = fixtures(pathlib.Path(os.environ["LLMTRAIN_DATA"]) / "metrics")
    path = pathlib.Path(__file__).with_name("goldens.json")
    path.write_text(json.dumps(goldens, separators=(",", ":")).replace(',"', ',\n"') + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
