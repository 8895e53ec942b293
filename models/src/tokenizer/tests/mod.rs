//! Whole texts, parts of them and texts with questions behind, by tokenizers of many kinds.

mod kinds;

use proptest::prelude::*;

use super::*;
use kinds::Kind;

/// What texts are made of, with what could go wrong where they are cut.
const PIECES: [&str; 66] = [
    "the",
    "Whale",
    " a",
    "don't",
    "we'll",
    "I'D",
    "\u{17f}",
    " ",
    "  ",
    "    ",
    "\t",
    "\n",
    "\r\n",
    "\n \n",
    " \n",
    "12",
    "1234567",
    " 3",
    ".",
    "...",
    "?!",
    "-",
    "\u{2014}",
    "\"",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|eot",
    "_id|>",
    "<|",
    "begin_of",
    "\u{e9}",
    "e\u{301}",
    "\u{1100}\u{1161}\u{11a8}",
    "\u{d55c}",
    "\u{4f60}\u{597d}",
    "\u{3002}",
    "\u{304b}\u{3099}",
    "\u{e19}\u{e49}",
    "\u{644}\u{64e}",
    "\u{1f600}",
    "\u{a0}",
    "\u{2003}",
    "\u{301}",
    "\u{1}",
    "<s>",
    "</s>",
    "[INST]",
    "<mask>",
    "<end>",
    "word",
    "Whole",
    "</think>",
    "</thi",
    "nk>",
    "Whale<b>",
    "\n\n",
    "\u{2581}",
    "\u{2581}the",
    "the Whale",
    "Whaling",
    " the",
    "<unk>",
    "\u{a8}",
    "\u{fb01}",
    "[IN",
    "don",
];

fn texts() -> impl Strategy<Value = String> {
    prop::collection::vec(0..PIECES.len(), 0..40)
        .prop_map(|pieces| pieces.into_iter().map(|piece| PIECES[piece]).collect())
}

fn each(check: impl Fn(&Kind)) {
    thread_local!(static KEPT: Vec<Kind> = kinds::all());
    KEPT.with(|kept| kept.iter().for_each(check));
}

/// The ids of a whole text, and those of a message.
fn check_whole(kind: &Kind, text: &str) {
    let Kind { name, tokenizer, blind, .. } = kind;
    let whole = kind.ids(text);
    let most = 4 * text.len() + 9;
    assert_eq!(tokenizer.encode_most(&Written::from(text.to_owned()), most).unwrap(), whole, "{name}: {text:?}");
    let blind = blind.encode_fast(text, false).unwrap().get_ids().to_vec();
    assert_eq!(tokenizer.encode_most(&Written::message(text), most).unwrap(), blind, "{name}: {text:?}");
}

/// A document and two questions about it: the ids are those of the whole, and the document's are the same.
fn check_cut(kind: &Kind, document: &str, questions: [&str; 2], raw: bool) {
    let Kind { name, tokenizer, .. } = kind;
    let written = |text: &str| if raw { Written::from(text.to_owned()) } else { Written::message(text) };
    let most = 4 * (document.len() + questions.map(str::len).iter().sum::<usize>()) + 99;
    let [one, other] = questions.map(|question| {
        let mut whole = written(document);
        whole.append(written(question));
        let ids = tokenizer.encode_most(&whole, most).unwrap();
        let whole = Passage::from(whole);
        let cut = tokenizer.cut(&whole, document.len(), most).unwrap();
        assert_eq!(cut.ids, ids, "{name}: {document:?} {question:?}");
        assert!(cut.certain <= cut.held && cut.held <= ids.len());
        let rest = cut.rest(whole, document.len());
        let behind = tokenizer.encode_passage(&rest.clone().followed_by(written(question)), most).unwrap();
        assert_eq!(behind, ids[cut.certain..], "{name}: {document:?} {question:?} behind {}", cut.certain);
        (rest, ids[..cut.certain].to_vec())
    });
    assert_eq!(one, other, "{name}: {document:?} {questions:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_text_has_the_ids_that_the_library_has(text in texts()) {
        each(|kind| check_whole(kind, &text));
    }

    #[test]
    fn a_text_of_any_characters_does(text in "\\PC{0,80}", spaces in "[ a\\n\t\r.,'0é한。▁Th]{0,120}") {
        each(|kind| check_whole(kind, &(text.clone() + &spaces)));
    }

    #[test]
    fn what_stands_before_a_border_is_the_same_whatever_is_asked(document in texts(), one in texts(), other in texts(), raw: bool) {
        each(|kind| check_cut(kind, &document, [&one, &other], raw));
    }

    #[test]
    fn it_is_so_between_any_characters(document in "[ a\\n\t.'0é한。▁Th]{0,40}", one in "[ a\\n\t.'0é한。▁Th]{0,5}", other in "\\PC{0,5}") {
        each(|kind| check_cut(kind, &document, [&one, &other], false));
    }

    /// A text that grows piece by piece has the ids of the whole, though only the last few characters of it are kept.
    #[test]
    fn a_text_that_grows_has_the_ids_of_the_whole(pieces in prop::collection::vec(texts(), 1..4)) {
        each(|kind| {
            let (mut ids, mut rest) = (Vec::new(), Passage::default());
            for piece in &pieces {
                rest = rest.followed_by(Written::message(piece));
                let (at, most) = (rest.written().text().len(), 4 * rest.written().text().len() + 99);
                let cut = kind.tokenizer.cut(&rest, at, most).unwrap();
                ids.extend_from_slice(&cut.ids[..cut.certain]);
                rest = cut.rest(rest, at);
            }
            ids.extend(kind.tokenizer.encode_passage(&rest, 1 << 20).unwrap());
            let whole = kind.tokenizer.encode_most(&Written::message(&pieces.concat()), 1 << 20).unwrap();
            assert_eq!(ids, whole, "{}: {pieces:?}", kind.name);
        });
    }
}

#[test]
fn few_characters_are_left_to_a_question() {
    let document = "the Whale a the Whale. ".repeat(20) + "the Whale";
    each(|kind| {
        let whole = Passage::from(Written::message(&(document.clone() + "\n\nWho?")));
        let cut = kind.tokenizer.cut(&whole, document.len(), 1 << 20).unwrap();
        let left = cut.rest(whole, document.len()).written().text().len();
        // There a name begins with what stands for each space.
        let is_near = kind.is_cut && kind.name != "legacy, normalized names";
        assert_eq!(left < 16, is_near, "{}: {left} bytes", kind.name);
        let behind = kind.tokenizer.encode_most(&Written::message("the Whale\n\nWho?"), 99).unwrap().len() + 16;
        assert!(cut.held + behind >= cut.ids.len(), "{}: {} of {}", kind.name, cut.held, cut.ids.len());
    });
}

#[test]
fn long_runs_are_tokenised_whole_and_longer_ones_refused() {
    each(|kind| {
        for run in ["a", " ", "\n", ".", "7", "\u{4f60}", "\u{301}"] {
            check_whole(kind, &run.repeat(1000));
            check_whole(kind, &format!("before it {} and after", run.repeat(700)));
        }
        if kind.is_cut {
            let refused = kind.tokenizer.encode_most(&" ".repeat(5000).into(), 1 << 20).unwrap_err();
            assert!(matches!(refused, ModelError::Uncut { most: 4096 }), "{}: {refused}", kind.name);
        }
    });
}

#[test]
fn a_file_without_a_vocabulary_is_refused_as_such() {
    for (json, got) in [
        ("", "an empty file"),
        ("{}", "without a model"),
        ("[]", "without a model"),
        (r#"{"version": "1.0", "model": null}"#, "without a model"),
        (r#"{"model": {"type": "BPE", "vocab": {}, "merges": []}}"#, "without a vocabulary"),
        (
            r#"{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"},
                "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                                  "normalized": false, "special": true}]}"#,
            "without a vocabulary",
        ),
    ] {
        let error = Tokenizer::from_files(json.as_bytes(), Default::default(), ("llama", "tiny")).err().expect(json);
        let words = format!("tiny/tokenizer.json is {got}; expected a tokenizer with its vocabulary");
        assert!(error.to_string().starts_with(&words) && error.code() == "model_file_unfit", "{error}");
    }
}

#[test]
fn no_merge_is_dropped_at_random() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let mut form: serde_json::Value = serde_json::from_slice(checkpoint.tokenizer_json()).unwrap();
    form["model"]["dropout"] = 0.9.into();
    let json = serde_json::to_vec(&form).unwrap();
    let read = |json: &[u8]| Tokenizer::from_files(json, Default::default(), ("llama", "dropout")).unwrap();
    let (whole, dropping) = (read(checkpoint.tokenizer_json()), read(&json));
    let text = "The whale is white, and the sea is wide. ".repeat(20);
    let ids = whole.encode(&text).unwrap();
    for _ in 0..4 {
        assert_eq!(dropping.encode(&text).unwrap(), ids);
        assert_eq!(dropping.encode_most(&Written::from(text.clone()), 1000).unwrap(), ids);
    }
    let library = tokenizers::Tokenizer::from_bytes(&json).unwrap();
    assert_ne!(library.encode_fast(text.as_str(), false).unwrap().get_ids(), ids, "the library does drop them");
}
