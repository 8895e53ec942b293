"""Small tokenizers of the kinds that published models have, trained on a page of text. Each has at most 512 tokens.

`KINDS` maps a name to `(tokenizer, settings)`: the library's tokenizer and the keys of tokenizer_config.json that belong to it.
"""

from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

MOST = 512
SPECIAL = ["<unk>", "<s>", "</s>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "<|im_start|>", "<|im_end|>", "<|endoftext|>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
           "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>", "<|User|>", "<|Assistant|>",
           "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|begin_of_sentence|>", "<|end_of_sentence|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ["[\r\n]", "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿΑ-Ωα-ωА-я]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+", "\\p{N}+"]

TEXT = (Path(__file__).parent / "../../examples/harbour.txt").read_text(encoding="utf-8")


def specials(**flags):
    """The names of special tokens, which all kinds have, and of some that are not special."""
    return ([AddedToken(name, special=True, normalized=False, **flags) for name in SPECIAL]
            + [AddedToken(name, special=False, normalized=False) for name in PLAIN])


def finished(tokenizer, added=None):
    """With the added tokens behind the vocabulary, where they are not in it."""
    for token in added or specials():
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    assert tokenizer.get_vocab_size() <= MOST, tokenizer.get_vocab_size()
    return tokenizer


def byte_level(pre, normalizer=None, prefix=False, regex=True, added=None, **model):
    """Byte-level BPE behind a pre-tokenizer, which may be several."""
    tokenizer = Tokenizer(models.BPE(**model))
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*pre, last]) if pre else last
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256 + 180, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return finished(tokenizer, added)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def sentencepiece(normalizer=None, pre=None, strip=True, added=None):
    """BPE over characters with ▁ for a space and bytes for what it lacks, as converters of sentencepiece make it."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trained.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=185, show_progress=False, limit_alphabet=75))
    import json
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {name: at for at, name in enumerate(names)}
    for token in sorted(model["vocab"], key=model["vocab"].get):
        vocab.setdefault(token, len(vocab))
    # Runs of spaces are tokens of such vocabularies.
    vocab["▁▁"] = len(vocab)
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[*merges, ("▁", "▁")], unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return finished(tokenizer, added)


def unigram():
    """Unigram over Metaspace pieces, behind NFKC, as XLM-R's and T5's kin have it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return finished(tokenizer)


def bos(name):
    return lambda tokenizer: processors.TemplateProcessing(
        single=f"{name} $A", pair=f"{name} $A $B:1", special_tokens=[(name, tokenizer.token_to_id(name))])


def with_post(tokenizer, post):
    tokenizer.post_processor = post(tokenizer)
    return tokenizer


def metaspace(scheme, split=False):
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=split)


def kinds():
    sp = normalizers.Replace(" ", "▁")
    backend = {"tokenizer_class": "PreTrainedTokenizerFast"}
    edged = ([AddedToken(name, special=True, normalized=False, rstrip=name.startswith("<|"), lstrip=name == "<|im_end|>")
              for name in SPECIAL]
             + [AddedToken("harbour", special=False, normalized=True, single_word=True),
                AddedToken("Lantern", special=False, normalized=True),
                AddedToken("</think>", special=False, normalized=False, lstrip=True, rstrip=True)])
    return {
        "gpt2": (byte_level([]), backend),
        "gpt2-prefix": (byte_level([], prefix=True), backend | {"add_prefix_space": True}),
        "llama3": (with_post(byte_level([split(LLAMA3)], regex=False, ignore_merges=True), bos("<|begin_of_text|>")),
                   backend),
        "qwen2": (byte_level([split(QWEN2)], normalizer=normalizers.NFC(), regex=False), {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False}),
        "smollm": (byte_level([pre_tokenizers.Digits(individual_digits=True)]), {"tokenizer_class": "GPT2Tokenizer"}),
        "tekken": (with_post(byte_level([split(TEKKEN)], regex=False, ignore_merges=True), bos("<s>")), backend),
        "deepseek": (byte_level([split(pattern) for pattern in DEEPSEEK], regex=False), backend),
        "llama2": (with_post(sentencepiece(normalizers.Sequence([normalizers.Prepend("▁"), sp])), bos("<s>")),
                   backend | {"legacy": True}),
        "mistral-first": (with_post(sentencepiece(pre=metaspace("first")), bos("<s>")), backend),
        "metaspace-always": (sentencepiece(pre=metaspace("always", split=True)), backend),
        "metaspace-never": (sentencepiece(pre=metaspace("never"), strip=False), backend),
        "llama-class": (with_post(sentencepiece(pre=metaspace("first")), bos("<s>")),
                        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False}),
        "gemma": (with_post(sentencepiece(sp, pre_tokenizers.Split(" ", "merged_with_previous"), strip=False),
                            bos("<bos>")), backend),
        "unigram": (unigram(), backend),
        "edges": (byte_level([split(QWEN2)], normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), regex=False, added=edged), backend),
    }


KINDS = kinds()
