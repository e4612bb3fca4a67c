"""Writes goldens.json: the tensors that llama.cpp's converter makes of the models in ../hf.

    PYTHONPATH=LLAMA_CPP:LLAMA_CPP/gguf-py python make_gguf_goldens.py

LLAMA_CPP is a checkout of llama.cpp (its package `conversion`; here that of llama-cpp-python 0.3.36), with torch and
Transformers beside it. For each model
and type: by name, the dimensions of a tensor, its type, and FNV-1a of its bytes; and the keys of the architecture.
"""

import json
import math
import pathlib
import tempfile

import gguf
from conversion import ModelBase, TextModel, get_model_class
from conversion.gemma import Gemma2Model, Gemma3Model

HERE = pathlib.Path(__file__).parent
CASES = ["gpt2", "llama", "llama3_v4_sharded", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "mixtral", "olmoe",
         "phi4", "starcoder2", "granite", "smollm3", "olmo2", "pythia", "falcon",
         "falcon_grouped", "gemma3"]
TYPES = {"fp32": gguf.LlamaFileType.ALL_F32, "fp16": gguf.LlamaFileType.MOSTLY_F16,
         "bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in bytes(data):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


class Scaled:
    """llama.cpp divides scores by sqrt(head_dim), whatever query_pre_attn_scalar is: queries make up for it, or the
    weights of their norm."""

    def modify_tensors(self, data_torch, name, bid):
        factor = math.sqrt(self.hparams["head_dim"] / self.hparams["query_pre_attn_scalar"])
        for new_name, data in super().modify_tensors(data_torch, name, bid):
            yield new_name, data * factor if name.endswith(self.scaled) else data


class ScaledGemma2(Scaled, Gemma2Model):
    model_arch = Gemma2Model.model_arch
    scaled = "q_proj.weight"


class ScaledGemma3(Scaled, Gemma3Model):
    model_arch = Gemma3Model.model_arch
    scaled = "q_norm.weight"

    def modify_tensors(self, data_torch, name, bid):
        if "embed_tokens" in name:  # whose rows the converter counts in a tokenizer
            yield from TextModel.modify_tensors(self, data_torch, name, bid)
        else:
            yield from super().modify_tensors(data_torch, name, bid)


def convert(case, type, path):
    folder = HERE.parent / "hf" / case
    hparams = ModelBase.load_hparams(folder, False)
    kind = {"gemma2": ScaledGemma2, "gemma3": ScaledGemma3}.get(case) or get_model_class(hparams["architectures"][0])
    kind.set_vocab = lambda self: self._set_vocab_none()
    if case == "gpt2":
        hparams["n_ctx"] = hparams["n_positions"]
    if case == "pythia":
        hparams["rotary_pct"] = hparams["rope_parameters"]["partial_rotary_factor"]
    if case == "falcon":
        hparams["num_kv_heads"] = 1
    model = kind(folder, type, path, hparams=hparams)
    model.write()


def golden(path):
    reader = gguf.GGUFReader(path)
    tensors = {t.name: [list(map(int, t.shape)), int(t.tensor_type), fnv(t.data.tobytes())] for t in reader.tensors}
    architecture = reader.fields["general.architecture"].contents()
    keys = {name: field.contents() for name, field in reader.fields.items() if name.startswith(architecture + ".")}
    return {"architecture": architecture, "keys": keys, "tensors": tensors}


def main():
    goldens = {}
    for case in CASES:
        for name, type in TYPES.items():
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "model.gguf"
                convert(case, type, path)
                goldens[f"{case} {name}"] = golden(path)
    lines = ['"made_by": "the converter of llama.cpp in llama-cpp-python 0.3.36"']
    lines += [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in goldens.items()]
    (HERE / "goldens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
