#!/usr/bin/env python3
"""Writes checkpoints.json and families.json: tiny checkpoints, and what transformers computes with them.

    python tests/conformance/checkpoints.py [FILE...]        (transformers 5, torch, safetensors, numpy)

A case is the text of a config.json, perhaps of a generation_config.json, how the weights are stored, and runs: prompts with the tokens
that greedy search finds in f32 and their logprobs. Or it is a key that is to be refused by name. The weights are not stored: both this
and models/tests/checkpoints.rs draw them, element i of tensor `name` from the 32-bit hash of both, as `unit` says. A tensor's values
are `0.3 u` in biases, `1 + 0.3 u` in norms, `u` in the embedding table, and `2 u / sqrt(columns)` elsewhere, rounded to f32 each
time. Prompts are drawn alike, as tensor `prompt.SEED`, from the vocabulary without its first 8 ids.
"""
import json, math, os, sys, tempfile, warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

NEW = 6
# Two tokens nearer to each other than this are no test of anything.
MARGIN = 2e-3


def unit(name, count):
    """`count` numbers in [-1, 1), multiples of 2^-23."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    h = (np.arange(count, dtype=np.uint64) * 0x9E3779B9 + seed).astype(np.uint32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return (h >> np.uint32(8)).astype(np.float32) / np.float32(2**23) - np.float32(1)


def tensor(name, shape):
    u = unit(name, math.prod(shape))
    if name.endswith(".bias"):
        values = np.float32(0.3) * u
    elif len(shape) == 1:
        values = np.float32(1) + np.float32(0.3) * u
    elif name.endswith("embed_tokens.weight"):
        values = u
    else:
        values = np.float32(2 / math.sqrt(shape[1])) * u
    return values.astype(np.float32).reshape(shape)


def prompt(seed, tokens, vocab):
    u = unit(f"prompt.{seed}", tokens)
    return [8 + int((float(x) + 1) / 2 * (vocab - 8)) for x in u]


BASE = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "bos_token_id": None, "eos_token_id": None,
}
GONE = object()


def shapes(c):
    """Names and shapes of what a decoder of `c` has, the head included."""
    hidden, inner, heads = c.get("hidden_size", 4096), c["intermediate_size"], c["num_attention_heads"]
    kv, normed = c.get("num_key_value_heads") or heads, c["model_type"] == "qwen3"
    dim = c.get("head_dim") or (128 if normed else hidden // heads)
    out = c["model_type"] in ("llama", "qwen3") and c.get("attention_bias")
    qkv = c["model_type"] == "qwen2" or out
    mlp = c["model_type"] == "llama" and c.get("mlp_bias")
    if c["model_type"] in OTHERS:
        yield from others(c, hidden, heads, kv)
        return
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        if normed:
            yield at + "self_attn.q_norm.weight", (dim,)
            yield at + "self_attn.k_norm.weight", (dim,)
        for name, n, k, biased in [
            ("self_attn.q_proj", heads * dim, hidden, qkv), ("self_attn.k_proj", kv * dim, hidden, qkv),
            ("self_attn.v_proj", kv * dim, hidden, qkv), ("self_attn.o_proj", hidden, heads * dim, out),
            ("mlp.gate_proj", inner, hidden, mlp), ("mlp.up_proj", inner, hidden, mlp),
            ("mlp.down_proj", hidden, inner, mlp),
        ]:
            yield f"{at}{name}.weight", (n, k)
            if biased:
                yield f"{at}{name}.bias", (n,)


OTHERS = ("phi3", "gemma2", "gemma3_text", "smollm3", "olmo2", "mixtral", "qwen3_moe", "gpt_oss")


def others(c, hidden, heads, kv):
    """The same of families with other layers."""
    family, inner = c["model_type"], c["intermediate_size"]
    dim = c.get("head_dim") or hidden // heads
    biased = c.get("attention_bias") and family in ("olmo2", "smollm3") or family == "gpt_oss"
    norms = {"olmo2": ["post_attention_layernorm", "post_feedforward_layernorm"]}.get(
        family, ["input_layernorm", "post_attention_layernorm"])
    if family.startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name in norms:
            yield f"{at}{name}.weight", (hidden,)
        widths = {"olmo2": (heads * dim, kv * dim), "gemma3_text": (dim, dim), "qwen3_moe": (dim, dim)}.get(family)
        if widths:
            yield at + "self_attn.q_norm.weight", (widths[0],)
            yield at + "self_attn.k_norm.weight", (widths[1],)
        linear = [("self_attn.o_proj", hidden, heads * dim)]
        if family == "phi3":
            linear.append(("self_attn.qkv_proj", (heads + 2 * kv) * dim, hidden))
        else:
            linear += [(f"self_attn.{x}_proj", n * dim, hidden) for x, n in (("q", heads), ("k", kv), ("v", kv))]
        for name, n, k in linear:
            yield f"{at}{name}.weight", (n, k)
            if biased:
                yield f"{at}{name}.bias", (n,)
        if family == "phi3":
            linear = [("mlp.gate_up_proj", 2 * inner, hidden), ("mlp.down_proj", hidden, inner)]
        elif family == "mixtral":
            linear = [("block_sparse_moe.gate", c["num_local_experts"], hidden)]
            for e in range(c["num_local_experts"]):
                one = f"block_sparse_moe.experts.{e}."
                linear += [(one + "w1", inner, hidden), (one + "w3", inner, hidden), (one + "w2", hidden, inner)]
        elif family == "gpt_oss":
            linear, n = [], c["num_local_experts"]
            yield at + "self_attn.sinks", (heads,)
            yield at + "mlp.router.weight", (n, hidden)
            yield at + "mlp.router.bias", (n,)
            yield at + "mlp.experts.gate_up_proj", (n, hidden, 2 * inner)
            yield at + "mlp.experts.gate_up_proj_bias", (n, 2 * inner)
            yield at + "mlp.experts.down_proj", (n, inner, hidden)
            yield at + "mlp.experts.down_proj_bias", (n, hidden)
        elif family == "qwen3_moe":
            linear, own = [("mlp.gate", c["num_experts"], hidden)], c["moe_intermediate_size"]
            for e in range(c["num_experts"]):
                one = f"mlp.experts.{e}."
                linear += [(one + "gate_proj", own, hidden), (one + "up_proj", own, hidden), (one + "down_proj", hidden, own)]
        else:
            linear = [("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner)]
        for name, n, k in linear:
            yield f"{at}{name}.weight", (n, k)


def stored(c, prefix, absent):
    """The tensors of the file: names in front of which `model.` is replaced, without some."""
    for name, shape in shapes(c):
        if name in absent:
            continue
        if prefix == "model.model.":
            yield "model." + name, tensor(name, shape)
        else:
            yield (prefix + name.removeprefix("model.") if name.startswith("model.") else name), tensor(name, shape)


CASES = []


def case(name, lengths=(12, 50), prefix="model.", absent=(), generation=None, eos=None, window=None, text=None,
         file="checkpoints.json", **changes):
    config = {k: v for k, v in (BASE | changes).items() if v is not GONE}
    CASES.append(dict(name=name, lengths=lengths, prefix=prefix, absent=list(absent), generation=generation, eos=eos,
                      window=window, text=text, config=config, file=file))


def refused(key, name, absent=(), file="checkpoints.json", **changes):
    config = {k: v for k, v in (BASE | changes).items() if v is not GONE}
    CASES.append(dict(name=name, refused=key, absent=list(absent), config=config, file=file))


def rope(style, **keys):
    """The rotary keys in one of the two styles; the base stands beside, or within."""
    if style == "old":
        return {"rope_scaling": keys}
    return {"rope_theta": GONE, "rope_parameters": {"rope_theta": 10000.0} | keys}


def ropes():
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
    long = dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.5, 2.0, 3.0, 4.5],
                original_max_position_embeddings=32)
    for style in ("old", "new"):
        case(f"default, {style}", **rope(style, rope_type="default"))
        case(f"linear, {style}", lengths=(12, 50, 100), **rope(style, rope_type="linear", factor=2.5))
        # Prompts below, at and above what they were trained for, and some that grow beyond it while they generate.
        case(f"dynamic, {style}", lengths=(12, 57, 60, 64, 65, 100), **rope(style, rope_type="dynamic", factor=2.0))
        case(f"yarn, {style}", lengths=(12, 40, 100), **rope(style, **yarn))
        case(f"longrope, {style}", lengths=(12, 24, 30, 32, 33, 50), **rope(style, **long))
        case(f"llama3, {style}", lengths=(12, 50), **rope(style, rope_type="llama3", factor=4.0, low_freq_factor=1.0,
             high_freq_factor=4.0, original_max_position_embeddings=32))
        case(f"proportional, {style}", **rope(style, rope_type="proportional", factor=2.0, partial_rotary_factor=0.5))
        case(f"mistral, yarn, {style}", model_type="mistral", sliding_window=None, lengths=(12, 100), **rope(style, **yarn))
        case(f"qwen2, yarn, {style}", model_type="qwen2", lengths=(12, 100), **rope(style, **yarn))
    case("yarn, called type", **rope("old", type="yarn", factor=4.0, original_max_position_embeddings=16))
    # Heads wide enough that fast and slow pairs and the ramp between them are there.
    wide = dict(head_dim=32, rope_theta=100.0)
    case("yarn, wide head", lengths=(12, 100), **wide, rope_scaling=yarn)
    case("yarn, attention factor", **wide, rope_scaling=dict(yarn, attention_factor=1.5))
    case("yarn, attention factor an integer", **wide, rope_scaling=dict(yarn, attention_factor=2))
    case("yarn, both mscales", **wide, rope_scaling=dict(yarn, mscale=1.0, mscale_all_dim=0.5))
    case("yarn, one mscale", **wide, rope_scaling=dict(yarn, mscale=0.7))
    case("yarn, betas", **wide, rope_scaling=dict(yarn, beta_fast=4.0, beta_slow=2))
    case("yarn, betas alike", **wide, rope_scaling=dict(yarn, beta_fast=2.0, beta_slow=2.0))
    case("yarn, not truncated", **wide, rope_scaling=dict(yarn, truncate=False))
    case("yarn, truncate null", **wide, rope_scaling=dict(yarn, truncate=None))
    case("yarn, factor null", **wide, rope_scaling=dict(yarn, factor=None))
    case("yarn, factor below 1", **wide, rope_scaling=dict(yarn, factor=0.5))
    case("yarn, without original", lengths=(12, 100), **wide, rope_scaling=dict(rope_type="yarn", factor=4.0))
    case("yarn, original beside", original_max_position_embeddings=16, **wide, rope_scaling=yarn)
    case("yarn of Qwen's card", model_type="qwen2", max_position_embeddings=32, rope_theta=1000000.0, lengths=(12, 100),
         rope_scaling=dict(factor=4.0, original_max_position_embeddings=32, type="yarn"))
    case("rope_scaling beside rope_parameters", rope_theta=500.0, rope_scaling=yarn, lengths=(12, 100),
         rope_parameters=dict(rope_type="default", rope_theta=700.0))
    case("rope_scaling beside rope_parameters that has the base", rope_theta=GONE, rope_scaling=yarn, lengths=(12, 100),
         rope_parameters=dict(rope_type="default", rope_theta=700.0))
    case("empty rope_scaling beside rope_parameters", rope_theta=GONE, rope_scaling={},
         rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=700.0))
    case("base in both places", rope_theta=500.0, rope_parameters=dict(rope_type="default", rope_theta=700.0))
    case("base in rope_scaling", rope_scaling=dict(rope_type="linear", factor=2.0, rope_theta=300.0))
    case("base beside rope_parameters", rope_theta=700.0, rope_parameters=dict(rope_type="linear", factor=2.0))
    case("base an integer", rope_theta=700)
    case("base absent", rope_theta=GONE)
    case("rope_type before type", rope_scaling=dict(type="yarn", rope_type="linear", factor=2.0))
    case("linear below 1", rope_scaling=dict(type="linear", factor=0.5))
    case("mrope_section without mrope", rope_scaling=dict(type="default", mrope_section=[1, 1, 2]))
    case("dynamic, small base and wide head", head_dim=32, rope_theta=100.0, lengths=(60, 100),
         **rope("old", type="dynamic", factor=8.0))
    case("longrope, factor", **rope("old", **long, factor=8.0))
    case("longrope, attention factor", **rope("old", **long, attention_factor=1.25))
    case("longrope, without original",
         **rope("old", **{k: v for k, v in long.items() if not k.startswith("original")}))
    case("longrope, original beside", original_max_position_embeddings=20, lengths=(12, 20, 21), **rope("old", **long))


def shapes_and_ties():
    case("one KV head", num_key_value_heads=1)
    case("as many KV heads", num_key_value_heads=4)
    case("KV heads null", num_key_value_heads=None)
    case("KV heads absent", num_key_value_heads=GONE)
    case("head_dim wider", head_dim=16)
    case("head_dim narrower", head_dim=4)
    case("head_dim null", head_dim=None)
    case("mistral, head_dim of no division", model_type="mistral", sliding_window=None, hidden_size=40,
         num_attention_heads=6, head_dim=8)
    case("qwen2", model_type="qwen2")
    case("qwen2, tied, no head", model_type="qwen2", tie_word_embeddings=True, absent=["lm_head.weight"])
    case("mistral", model_type="mistral", sliding_window=None)
    case("attention_bias", attention_bias=True)
    case("mlp_bias", mlp_bias=True)
    case("attention_bias of mistral", model_type="mistral", sliding_window=None, attention_bias=True)
    case("biases of qwen2 whatever attention_bias says", model_type="qwen2", attention_bias=False)
    case("qwen3", model_type="qwen3", head_dim=16)
    case("qwen3, head_dim absent", model_type="qwen3")
    case("qwen3, head_dim of no division", model_type="qwen3", hidden_size=40, num_attention_heads=6, head_dim=8)
    case("qwen3, tied, no head", model_type="qwen3", head_dim=8, tie_word_embeddings=True, absent=["lm_head.weight"])
    case("qwen3, attention_bias", model_type="qwen3", head_dim=8, attention_bias=True)
    case("qwen3, mlp_bias is not read", model_type="qwen3", head_dim=8, mlp_bias=True)
    case("qwen3, rms_norm_eps large", model_type="qwen3", head_dim=8, rms_norm_eps=0.1)
    case("qwen3, yarn", model_type="qwen3", head_dim=32, max_position_embeddings=32, lengths=(12, 100),
         rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32))
    case("tied, no head", tie_word_embeddings=True, absent=["lm_head.weight"])
    case("tied, another head", tie_word_embeddings=True)
    case("tied, head alone", tie_word_embeddings=True, absent=["model.embed_tokens.weight"])
    case("without model.", prefix="")
    case("without model., tied, no head", prefix="", tie_word_embeddings=True, absent=["lm_head.weight"])
    case("with model. twice", prefix="model.model.")
    case("rms_norm_eps absent", rms_norm_eps=GONE)
    case("rms_norm_eps large", rms_norm_eps=0.1)
    case("max_position_embeddings absent", max_position_embeddings=GONE)
    case("swish", hidden_act="swish")
    case("keys of no influence", pretraining_tp=4, attention_dropout=0.5, use_cache=False, initializer_range=0.5,
         torch_dtype="bfloat16", pad_token_id=3, use_sliding_window=True, architectures=["LlamaForCausalLM"])
    case("Infinity and NaN in keys that nobody reads",
         text=lambda text: text[:-1] + ', "router": Infinity, "more": [-Infinity, NaN]}')
    case("eos, one", eos=lambda third: third)
    case("eos, a list", eos=lambda third: [5, third])
    case("eos, a list with -1", eos=lambda third: [-1, third])
    case("eos -1", eos_token_id=-1)
    case("eos absent", eos_token_id=GONE)
    case("eos of generation_config.json", eos_token_id=3, generation=True, eos=lambda third: third)


def windows():
    m = dict(model_type="mistral")
    case("mistral, window", lengths=(12, 18, 19, 40), sliding_window=24, **m)
    case("mistral, window longer than the model", model_type="mistral", sliding_window=4096)
    case("mistral, window absent", model_type="mistral", max_position_embeddings=GONE)
    q = dict(model_type="qwen2", sliding_window=24)
    case("qwen2, window not used", **q)
    case("qwen2, window of later layers", use_sliding_window=True, **q)
    case("qwen2, window of the second layer", lengths=(12, 18, 19, 50), use_sliding_window=True, max_window_layers=1, **q)
    case("qwen2, window of all layers", lengths=(18, 19, 50), use_sliding_window=True, max_window_layers=0, **q)
    case("qwen2, window by layer_types", lengths=(18, 19, 50), use_sliding_window=True,
         layer_types=["full_attention", "sliding_attention"], **q)
    case("qwen2, full by layer_types", use_sliding_window=True, max_window_layers=0, layer_types=["full_attention"] * 2, **q)
    case("qwen3, window not used", model_type="qwen3", head_dim=8, sliding_window=24)
    case("qwen3, window of the second layer", model_type="qwen3", head_dim=8, sliding_window=24, lengths=(18, 19, 50),
         use_sliding_window=True, max_window_layers=1)
    case("llama, window", lengths=(18, 19), window=24, sliding_window=24)
    case("layer_types of old names", model_type="qwen2", layer_types=["attention", "attention"])


def families():
    """Those that are not shaped as Llama is, in a file of their own, with the names and shapes of their tensors."""
    tied = dict(tie_word_embeddings=True, absent=["lm_head.weight"])
    long = dict(max_position_embeddings=1024, lengths=(1, 17, 500), file="families.json")
    case("mistral, window, long", model_type="mistral", sliding_window=24, **long)
    p = dict(long, model_type="phi3", pad_token_id=None)
    case("phi3", **p)
    case("phi3, window", **dict(p, lengths=(12, 19, 40, 500)), sliding_window=24)
    scaling = dict(short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.5, 2.0, 3.0, 4.5])
    threshold = dict(p, lengths=(1, 17, 26, 33, 500))
    case("phi3, longrope", **threshold, original_max_position_embeddings=32, rope_scaling=dict(scaling, type="longrope"))
    case("phi3, su", **threshold, original_max_position_embeddings=32, 
         rope_scaling=dict(scaling, type="su", original_max_position_embeddings=32))
    part = dict(partial_rotary_factor=0.75)
    case("phi3, a part of the head", **p, **part)
    case("phi4-mini", **threshold, **part, original_max_position_embeddings=32, sliding_window=262144, num_key_value_heads=1,
         rope_scaling={k: v[:3] for k, v in scaling.items()} | {"type": "longrope"}, tie_word_embeddings=True,
         absent=["lm_head.weight"])
    g = dict(long, **tied, model_type="gemma2", head_dim=16, num_hidden_layers=4, sliding_window=16, query_pre_attn_scalar=24,
             attn_logit_softcapping=2.0, final_logit_softcapping=5.0, lengths=(1, 17, 40, 500))
    case("gemma2", **g)
    case("gemma2, without caps", **dict(g, attn_logit_softcapping=None, final_logit_softcapping=None, lengths=(17, 40)))
    case("gemma2, wide heads", **dict(g, head_dim=256, num_attention_heads=2, num_key_value_heads=1, lengths=(17, 40)))
    case("gemma2, by layer_types", **dict(g, lengths=(40,)), layer_types=["full_attention"] * 3 + ["sliding_attention"])
    g = dict(long, **tied, model_type="gemma3_text", head_dim=16, num_hidden_layers=7, sliding_window=16,
             query_pre_attn_scalar=24, rope_theta=1000000.0, lengths=(1, 17, 40, 500))
    case("gemma3", **g)
    case("gemma3, linear", **g, rope_local_base_freq=500.0, rope_scaling=dict(rope_type="linear", factor=8.0))
    case("gemma3, pattern of two", **dict(g, num_hidden_layers=4, lengths=(40,)), sliding_window_pattern=2)
    case("gemma3, rope_parameters", **dict(g, lengths=(40,), rope_theta=GONE), rope_parameters={
        "full_attention": dict(rope_type="linear", factor=2.0, rope_theta=5000.0),
        "sliding_attention": dict(rope_type="default", rope_theta=300.0)})
    case("gemma3, capped", **dict(g, lengths=(40,)), attn_logit_softcapping=3.0, final_logit_softcapping=4.0)
    s = dict(long, **tied, model_type="smollm3", num_hidden_layers=4, pad_token_id=None)
    case("smollm3", **s)
    case("smollm3, layers named", **dict(s, lengths=(17,)), no_rope_layers=[0, 1, 1, 0])
    case("smollm3, window", **dict(s, lengths=(17, 40)), use_sliding_window=True, sliding_window=16, no_rope_layer_interval=2)
    o = dict(long, model_type="olmo2", pad_token_id=None)
    case("olmo2", **o)
    case("olmo2, attention_bias", **dict(o, lengths=(17,)), attention_bias=True)
    case("olmo2, as many KV heads", **dict(o, lengths=(17,)), num_key_value_heads=4)
    x = dict(long, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
    case("mixtral", **x)
    case("mixtral, window", **dict(x, lengths=(17, 60)), sliding_window=24)
    case("mixtral, all experts", **dict(x, lengths=(17,), num_experts_per_tok=4))
    x = dict(long, model_type="qwen3_moe", num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, head_dim=16)
    case("qwen3_moe", **x, norm_topk_prob=True)
    case("qwen3_moe, shares as they are", **dict(x, lengths=(17,)))
    case("qwen3_moe, window", **dict(x, lengths=(17, 60)), use_sliding_window=True, sliding_window=24)

    x = dict(long, model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=4, head_dim=16,
             sliding_window=16, pad_token_id=None)
    case("gpt_oss", **dict(x, lengths=(1, 17, 40, 500), rope_theta=150000.0), swiglu_limit=1.5, rope_scaling=dict(
        rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=64))
    case("gpt_oss, rope of the class", **dict(x, lengths=(40,), rope_theta=GONE, max_position_embeddings=131072))
    case("gpt_oss, by layer_types", **dict(x, lengths=(40,)), layer_types=["full_attention", "sliding_attention"] * 2)
    f = dict(file="families.json")
    refused("hidden_activation", "gemma with gelu", model_type="gemma2", hidden_activation="gelu", **f)
    refused("use_bidirectional_attention", "gemma both ways", model_type="gemma3_text", use_bidirectional_attention=True, **f)
    refused("rope_parameters", "gemma3 with one rope", model_type="gemma3_text", rope_theta=GONE,
            rope_parameters=dict(rope_type="default", rope_theta=500.0), **f)
    refused("decoder_sparse_step", "experts in every second layer", model_type="qwen3_moe", decoder_sparse_step=2, **f)
    refused("mlp_only_layers", "a layer without experts", model_type="qwen3_moe", mlp_only_layers=[0], **f)
    refused("num_experts_per_tok", "more experts than there are", model_type="mixtral", num_experts_per_tok=9, **f)
    refused("no_rope_layers", "too few layers", model_type="smollm3", no_rope_layers=[1], **f)
    refused("rope_scaling.rope_type", "phi3 with linear", model_type="phi3", rope_scaling=dict(type="linear", factor=2.0), **f)
    refused("clip_qkv", "olmo2 clipped", model_type="olmo2", clip_qkv=8.0, **f)
    refused("partial_rotary_factor", "an odd part", model_type="phi3", partial_rotary_factor=0.4, **f)


def refusals():
    refused("model_type", "another family", model_type="mamba")
    refused("hidden_act", "gelu", hidden_act="gelu")
    refused("quantization_config", "quip", quantization_config={"quant_method": "quip", "bits": 4})
    refused("per_layer_config", "layers that differ", per_layer_config={"0": {"intermediate_size": 24}})
    refused("rope_scaling.rope_type", "su", rope_scaling=dict(type="su", short_factor=[1.0] * 4, long_factor=[2.0] * 4))
    refused("rope_scaling.rope_type", "mrope", rope_scaling=dict(type="mrope", mrope_section=[1, 1, 2]))
    refused("rope_scaling.factor", "yarn without factor", rope_scaling=dict(type="yarn", original_max_position_embeddings=32))
    refused("rope_scaling.factor", "dynamic with alpha", rope_scaling=dict(type="dynamic", alpha=1000.0))
    refused("rope_parameters.factor", "a factor of text", rope_parameters=dict(rope_type="linear", factor="2.0"))
    refused("rope_scaling.short_factor", "longrope with a short list",
            rope_scaling=dict(type="longrope", short_factor=[1.0] * 3, long_factor=[2.0] * 4))
    refused("rope_parameters", "nested", rope_theta=GONE, model_type="qwen2",
            rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500.0}})
    refused("rope_theta", "base null", rope_theta=None)
    refused("partial_rotary_factor", "a part of the head", rope_scaling=dict(type="linear", factor=2.0), partial_rotary_factor=0.5)
    refused("num_hidden_layers", "a float for an integer", num_hidden_layers=2.0)
    refused("tie_word_embeddings", "tie null", tie_word_embeddings=None)
    refused("tie_word_embeddings", "no head and no tie", absent=["lm_head.weight"])
    refused("max_position_embeddings", "length null", max_position_embeddings=None)
    refused("num_key_value_heads", "KV heads of the class", model_type="qwen2", num_key_value_heads=GONE)
    refused("hidden_size", "llama of no division", hidden_size=36, num_attention_heads=5, num_key_value_heads=5, head_dim=8)
    refused("layer_types", "sliding layers without a window", model_type="qwen2",
            layer_types=["full_attention", "sliding_attention"])
    refused("layer_types", "too few layer_types", model_type="qwen2", layer_types=["full_attention"])
    refused("layer_types", "chunked layers", layer_types=["chunked_attention"] * 2, attention_chunk_size=None)
    refused("configuration_files", "another file", configuration_files=["config.4.0.0.json"])
    refused("transformers_weights", "weights elsewhere", transformers_weights="other.safetensors")
    refused("is_causal", "both directions", is_causal=False)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def run(folder, ids):
    """Tokens that greedy search finds, without an end of sequence, their logprobs, and the least lead of any."""
    out = load(folder).generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
                                max_new_tokens=NEW, return_dict_in_generate=True, output_logits=True, use_cache=True)
    tokens, logprobs, lead = out.sequences[0, len(ids):].tolist(), [], 9.0
    for token, logits in zip(tokens, out.logits):
        row = torch.log_softmax(logits[0].double(), -1)
        top = row.topk(2).values
        lead = min(lead, float(top[0] - top[1]))
        logprobs.append(round(float(row[token]), 6))
    return tokens, logprobs, lead


def runs(case, folder, config):
    for length in case["lengths"]:
        if case["window"] and length + NEW > case["window"]:
            yield dict(tokens=length, refused="sliding_window")
            continue
        for seed in range(40):
            tokens, logprobs, lead = run(folder, prompt(seed, length, config["vocab_size"]))
            if lead > MARGIN:
                break
        else:
            sys.exit(f"{case['name']}: no prompt of {length} tokens with a lead")
        yield dict(tokens=length, seed=seed, answer=tokens, logprobs=logprobs)


def write(case, folder, config):
    text = json.dumps(config)
    text = case["text"](text) if case["text"] else text
    open(f"{folder}/config.json", "w").write(text)
    if isinstance(case["generation"], dict):
        open(f"{folder}/generation_config.json", "w").write(json.dumps(case["generation"]))
    return text


def with_eos(case, folder):
    """The third token of the answer to the first prompt ends it."""
    third = run(folder, prompt(0, case["lengths"][0], case["config"]["vocab_size"]))[0][2]
    if case["generation"]:
        case["generation"] = {"eos_token_id": case["eos"](third)}
    else:
        case["config"]["eos_token_id"] = case["eos"](third)
    return third


def main():
    ropes(), shapes_and_ties(), windows(), refusals(), families()
    for file in sys.argv[1:] or ["checkpoints.json", "families.json"]:
        write_file(file, [case for case in CASES if case["file"] == file])


def write_file(file, cases):
    written = []
    for case in cases:
        if key := case.get("refused"):
            entry = dict(name=case["name"], config=json.dumps(case["config"]), refused=key)
            written.append(entry | ({"absent": case["absent"]} if case["absent"] else {}))
            continue
        with tempfile.TemporaryDirectory() as folder:
            config = case["config"]
            save_file(dict(stored(config, case["prefix"], case["absent"])), f"{folder}/model.safetensors", {"format": "pt"})
            write(case, folder, config)
            third = with_eos(case, folder) if case["eos"] else None
            text = write(case, folder, config)
            entry = dict(name=case["name"], config=text, runs=list(runs(case, folder, config)))
            if third is not None:
                first = entry["runs"][0]
                first["answer"] = first["answer"][: first["answer"].index(third)]
                del first["logprobs"][len(first["answer"]):]
                first["ends"], entry["runs"] = True, [first]
            entry |= {key: case[key] for key in ("prefix", "absent") if case[key] not in ("model.", [])}
            if file == "families.json":
                entry["tensors"] = {name: list(shape) for name, shape in shapes(config)}
            if case["generation"]:
                entry["generation"] = json.dumps(case["generation"])
            written.append(entry)
            print(case["name"], [(r["tokens"], r.get("seed")) for r in entry["runs"]], flush=True)
    lines = ",\n".join(json.dumps(entry) for entry in written)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), file)
    open(path, "w").write(f'{{"transformers": "{transformers.__version__}", "new": {NEW}, "cases": [\n{lines}\n]}}\n')
    print(len(written), "cases")


main()
