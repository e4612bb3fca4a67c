#!/usr/bin/env python3
"""Writes regex_goldens.json: where Oniguruma, in the tokenizers package, cuts awkward texts by patterns that llmtrain
matches with PCRE2, as byte offsets of the ends of pieces, and patterns that it refuses.

    pip install tokenizers==0.23.3
    python make_regex_goldens.py
"""

import json
import os
import random

import tokenizers
from tokenizers import Regex, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
PATTERNS = [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
            r"(?i)'s|'t|\w+|\s+|[^\w\s]+",r"\b\w+\b",r"\w+|\W",r"\h+|\H",r"(?<=\d)\D+|\d",r"^\s*\S+",r"\s+$|\S+",r"[[:punct:]]+|[^[:punct:]]+",r"[\p{Han}\p{Hiragana}]+|[^\p{Han}]",
            r"[\w&&[^\d_]]+|.",r"(?m).+",r"x*",r"(?=b)|\d",r"\s*",r"(?>\p{Lu}\p{Ll}+)|\p{Lu}+|\p{Ll}+|\p{N}+|\s+|[^\s\p{L}\p{N}]+",r"\p{^L}+|\p{L}",r"\P{N}{1,5}",r"(?i:k)+|\S",r"\B\w|\W+",r"[^\S\r\n]+|[\r\n]+|\S+",r"\A\s+|\s+\z|\S+",r"\Z|a",r"a{2}?|b{,2}|c{1,2}+|.",r"\p{M}+|\P{M}\p{M}*",r"[a-z]{1,3}|[A-Z]++|.",r"(?:\p{L}|\p{M})+|\p{Zs}+|\p{Cc}|\p{Cf}|.",r"[^a-zA-Z0-9]",r"\p{Sc}\d+|\p{Sm}|\p{Sk}|\p{So}|\p{Pd}|\p{P}",r"(?i)[a-k]+|[^a-k]",r"[\s\S]{1,7}",r"\u00e9|\x{4e16}|\x41|\t|\e|.",r"(?:a|ab)(?:c|bcd)*|.",r"[]a]|[^]a]+",r"[\-\]\[]+|[a\-z]+|.",r"(?<![a-z])[a-z]+",r"\d(?=\d{3}+(?!\d))|.",r"[[:word:]]+|[[:space:]]|[[:blank:]]|.",r"(?<=^|\s)\S",r"\p{Latin}+|\p{Cyrillic}+|\p{Greek}+|\p{Arabic}+|\p{Hangul}+|\p{Thai}+|.",r"a{1,2}{2}|.", "(?i:\u017f)|.", r"\p{C}+|\P{C}", r"(?i)[^\p{L}]+|\p{L}+",
            r"\p{Alpha}+|\p{Punct}", r"\p{Alnum}+|[[:punct:]]", r"\p{Upper}+|\p{Lowercase}+", r"\p{Uppercase}|\p{Lower}+", r"\p{Graph}+", r"[\p{Print}]+|\P{Print}",
            r"\p{Emoji}+|\p{Extended_Pictographic}", r"\p{extended pictographic}\u200d?", r"\p{Cn}|\p{Co}|\p{Alphabetic}", r"[[:alpha:]]+|[[:^alnum:]]", r"[^[:upper:][:digit:]]+", r"[[:lower:]]+|[[:graph:]]", r"[[:print:]&&[:^alpha:]]+", r"\p{Word}+|[\p{Word}]", r"(?i)\p{Emoji}|[\p{Emoji}x]"]
EVERY_BEHAVIOR = [0, 3, 6, 13, 14, 15]  # places in PATTERNS
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
REFUSED = [r"(?i:stra|\u0130)", r"\X", r"(?i:ss)", r"\G\w", r"\Ka", r"(?~ab)", r"(?i)[[:upper:]]", r"(?i)\p{Uppercase_Letter}", r"(a)\g<1>\1", r"(?<p>a\g<p>?)b", r"\377", r"\R|\N+", "(?x) \\p{L}+ # word\n | \\d+ ", r"(\w)\1|.", r"(?<q>['\"]).*?\k<q>|.", r"[\141-\143]+", r"\cI|\C-J", r"\012", r"(?<p>[aA]|[bB\d]+)\g<p>{1,2}|.", r"([^ ]1?)\g<1> |.", r"a(?#c)b"]

POOL=list("abcABC xyz  \t\n\r\n0123\u0663\u096a\u4e94\u3002\uff0c\uff1f!'\"()-_[]{}\u00e9\u00df\u017f\u0130\u0131K\u0130\u03a3\u03c3\u03c2\u4f60\u597d\u4e16\u754c\u3053\u3093\u306b\u3061\u306f\ud55c\uad6d\uc5b4\u041f\u0440\u0438\u0432\u0435\u0442\u0301\u0327\u200d\u200c\ufeff\u00a0\u2028\u2029\u3000\u0085\u000b\u000c\U0001f600\U0001f469\U0001f680\U0001f1e9\U0001f1ea\u2167\u00bd\u2460\u24d0$\u20ac+<=>^`|~\u0e44\u0e17\u0e22\u0928\u092e\u0938\u094d\u0924\u0947\u0627\u0644\u0639\u0631\u0628\u064a\u0629\u1c89\U0001e030\U00031350\u0cf3\U00011f50")+["'s","'LL","'Ve","\r\n","  ","\n\n","aa","\U0001f469\u200d\U0001f680","stra\u00dfe","123456"]


def texts():
    rng = random.Random(7)
    out = ["","a"," ","\n","  a","a  ","\r\n\r\n"," \n \n","don't WE'LL I'\u017f","aab bcd 1234567,89","\u201cq\u201d 'q' \"x\""]
    for _ in range(16):
        out.append("".join(rng.choice(POOL) for _ in range(rng.randrange(1, 40))))
    return out


def pieces(pattern, behavior, invert, text):
    starts = [0]
    for c in text:
        starts.append(starts[-1] + len(c.encode()))
    split = pre_tokenizers.Split(Regex(pattern), behavior, invert=invert).pre_tokenize_str(text)
    return [starts[i] for _, range in split for i in range]


def main():
    cases = []
    for k, pattern in enumerate(PATTERNS):
        for behavior in BEHAVIORS if k in EVERY_BEHAVIOR else ["isolated"]:
            for invert in (False, True) if k in EVERY_BEHAVIOR else (False,):
                cases.append({"regex": pattern, "behavior": behavior, "invert": invert,
                              "pieces": [pieces(pattern, behavior, invert, text) for text in texts()]})
    for pattern in REFUSED:
        Regex(pattern)  # Oniguruma knows it
    content = {"made_by": f"tokenizers {tokenizers.__version__}", "texts": texts(), "cases": cases, "refused": REFUSED}
    with open(os.path.join(HERE, "regex_goldens.json"), "w", encoding="ascii") as file:
        json.dump(content, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
