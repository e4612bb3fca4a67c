"""Inverse frequencies and attention factors of published and invented rope scalings by Transformers, for
tests/models/rope_frequencies_test.cpp.

Writes rope/frequencies.txt, two lines a case:
    name | rope_scaling as in a deck | theta head_dim partial_rotary_factor max_seq_len length
    attention factor, then the inverse frequencies of a sequence of that length, as hex floats
Made with torch 2.15.0, transformers 5.23.0, Python 3.11.
"""
import pathlib

import transformers as hf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from shapes import llama

short = " ".join(str(round(1 + 0.02 * i, 3)) for i in range(48))
long = " ".join(str(round(1.1 + 0.1 * i * i, 3)) for i in range(48))
partial = " ".join(str(round(1 + 0.5 * i, 3)) for i in range(36))
LONGROPE = f"longrope, original_max_position_embeddings 4096, short_factor {short}, long_factor {long}"
# name: (rope_scaling, theta, head_dim, partial_rotary_factor, max_seq_len, length)
CASES = {
    "llama_3_1": ("llama3, factor 8.0, original_max_position_embeddings 8192, low_freq_factor 1.0, high_freq_factor 4.0",
                  500000.0, 128, 1.0, 131072, 100),
    "llama_3_2": ("llama3, factor 32.0, original_max_position_embeddings 8192, low_freq_factor 1.0, "
                  "high_freq_factor 4.0", 500000.0, 64, 1.0, 131072, 100),
    "qwen2_5_yarn": ("yarn, factor 4.0, original_max_position_embeddings 32768", 1e6, 128, 1.0, 131072, 100),
    "yarn_not_truncated": ("yarn, factor 32.0, original_max_position_embeddings 4096, beta_fast 32.0, beta_slow 1.0, "
                           "truncate false", 150000.0, 64, 1.0, 131072, 100),
    "yarn_mscale": ("yarn, factor 40.0, original_max_position_embeddings 4096, mscale 1.0, mscale_all_dim 0.707, "
                    "beta_fast 24.0, beta_slow 2.0", 10000.0, 64, 1.0, 163840, 100),
    "yarn_attention_factor": ("yarn, factor 2.0, original_max_position_embeddings 2048, attention_factor 1.5", 10000.0,
                              96, 1.0, 4096, 100),
    "yarn_below_one": ("yarn, factor 1.0, original_max_position_embeddings 4096", 10000.0, 64, 1.0, 4096, 100),
    "phi_3_short": (LONGROPE, 10000.0, 96, 1.0, 131072, 4096),
    "phi_3_long": (LONGROPE, 10000.0, 96, 1.0, 131072, 4097),
    "longrope_partial": (f"longrope, factor 8.0, original_max_position_embeddings 512, short_factor {partial}, "
                         f"long_factor {partial}", 10000.0, 96, 0.75, 4096, 600),
    "linear": ("linear, factor 4.0", 10000.0, 128, 1.0, 8192, 100),
    "linear_partial": ("linear, factor 2.5", 10000.0, 80, 0.4, 2048, 100),
    "dynamic_within": ("dynamic, factor 4.0", 10000.0, 128, 1.0, 1024, 1024),
    "dynamic_beyond": ("dynamic, factor 4.0", 10000.0, 128, 1.0, 1024, 3000),
    "dynamic_partial": ("dynamic, factor 2.0", 10000.0, 64, 0.5, 500, 777),
}


def main():
    lines = []
    for name, (text, theta, head_dim, share, longest, length) in CASES.items():
        rope = llama(rope_scaling=text).rope_parameters() | {"rope_theta": theta, "partial_rotary_factor": share}
        config = hf.LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim,
                                max_position_embeddings=longest, rope_parameters=rope)
        inverse, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
        lines.append(f"{name} | {text} | {theta!r} {head_dim} {share} {longest} {length}")
        lines.append(" ".join(float(x).hex() for x in [factor, *inverse.tolist()]))
    path = pathlib.Path(__file__).parent / "rope" / "frequencies.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    print(len(CASES), "cases")


if __name__ == "__main__":
    main()
