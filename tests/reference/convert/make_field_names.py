"""make_field_names.py LLAMAFACTORY AXOLOTL: writes field_names.json, the names of the settings of Transformers, TRL and PEFT
(as installed) and of LLaMA-Factory and Axolotl (folders of their unpacked packages, which are parsed and not imported). A test
requires an entry in llmtool convert's tables for each name."""
import ast
import dataclasses
import glob
import json
import os
import sys

import peft
import transformers
import trl


def fields_of(config):
    return sorted(field.name for field in dataclasses.fields(config) if field.init)


def annotated_names(paths, leave_out=()):
    names = set()
    for path in paths:
        for node in ast.parse(open(path, encoding="utf-8").read()).body:
            if isinstance(node, ast.ClassDef) and node.name not in leave_out:
                names |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
    return sorted(names)


def axolotl_names(folder):
    """Top-level keys: the fields of AxolotlInputConfig and of the classes that it inherits from."""
    classes = {}
    for path in glob.glob(os.path.join(folder, "utils/schemas/*.py")):
        for node in ast.parse(open(path, encoding="utf-8").read()).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node
    names, waiting = set(), ["AxolotlInputConfig"]
    while waiting:
        node = classes.get(waiting.pop())
        if node is not None:
            names |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
            waiting += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return sorted(names)


def main():
    llama_factory, axolotl = sys.argv[1:]
    names = {"TrainingArguments": ["transformers", "", fields_of(transformers.TrainingArguments)]}
    for name, task in (("SFTConfig", "sft"), ("DPOConfig", "dpo"), ("KTOConfig", "kto"), ("GRPOConfig", "grpo"),
                       ("RLOOConfig", "rloo"), ("RewardConfig", "reward"), ("ModelConfig", "sft"), ("ScriptArguments", "sft")):
        names[name] = ["trl", task, fields_of(getattr(trl, name))]
    names["LoraConfig"] = ["peft", "", fields_of(peft.LoraConfig)]
    arguments = [os.path.join(llama_factory, "hparams", f"{part}_args.py")
                 for part in ("model", "data", "finetuning", "generating", "training")]
    names["LLaMA-Factory"] = ["llamafactory", "", annotated_names(arguments)]
    names["Axolotl"] = ["axolotl", "", axolotl_names(axolotl)]
    versions = {"transformers": transformers.__version__, "trl": trl.__version__, "peft": peft.__version__,
                "llamafactory": "0.9.5", "axolotl": "0.19.0"}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "field_names.json"), "w", encoding="utf-8") as file:
        json.dump({"versions": versions, "names": names}, file, indent=0)
        file.write("\n")


main()
