//! The fields of a request, taken out one by one: what is left at the end is refused by its name. Knows which change nothing here.

use std::{collections::BTreeMap, fmt};

use asterism_actors::api::Prompt;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, json};

use super::{
    known::{HARMLESS, HONOURED, NEUTRAL, asks_for, is_known},
    message::Messages,
    once::{BoundedValue, Budget},
};
use crate::api::openai::store::metadata::Metadata;
use crate::api::{
    http::error::{Refusal, parser_words},
    openai::{Checked, refusal},
};

/// Fields that texts come in.
const TEXTS: [&str; 4] = ["prompt", "context", "messages", "input"];

/// Most prompts of a completion.
pub const MOST_PROMPTS: usize = 128;

/// What a request says, by name.
#[derive(Debug, Default)]
pub struct Fields {
    /// `prompt`.
    pub prompt: Option<PromptInput>,
    /// `context`.
    pub context: Option<Prompt>,
    /// `messages`.
    pub messages: Option<Messages>,
    /// `input`.
    pub input: Option<Messages>,
    /// `metadata`.
    pub metadata: Option<Metadata>,
    /// Names that this request has beside those of all others.
    own_names: &'static [&'static str],
    /// What is small, and the names of all others, with nothing.
    rest: BTreeMap<String, Value>,
}

/// What is to be gone on with: one text or list of ids, or several of them.
#[derive(Debug, PartialEq)]
pub enum PromptInput {
    /// One.
    One(Prompt),
    /// Several.
    Many(Vec<Prompt>),
}

impl Fields {
    /// Takes a field out; absent where it is null.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Checked<Option<T>> {
        let value = self.rest.remove(name).filter(|value| !value.is_null());
        let read = |value| serde_json::from_value(value).map_err(|error| wrong(name, &error));
        value.map(read).transpose()
    }

    /// The model that is asked for; stays there.
    pub fn model(&self) -> Checked<Option<String>> {
        match self.rest.get("model").filter(|value| !value.is_null()) {
            Some(name) => String::deserialize(name).map(Some).map_err(|error| wrong("model", &error)),
            None => Ok(None),
        }
    }

    /// Takes a field out as it is.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        self.rest.remove(name).filter(|value| !value.is_null())
    }

    /// Looks at a field.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.rest.get(name).filter(|value| !value.is_null())
    }

    /// Takes a number out where it is 0; says whether it was.
    pub fn take_zero(&mut self, name: &str) -> bool {
        let is_zero = self.rest.get(name).and_then(Value::as_f64) == Some(0.0);
        if is_zero {
            self.rest.remove(name);
        }
        is_zero
    }

    /// The same, of a request that has further names.
    pub fn with_names(self, own_names: &'static [&'static str]) -> Self {
        Self { own_names, ..self }
    }

    /// A field that is none, with the one that was perhaps meant.
    pub fn unknown(&self, name: &str) -> Refusal {
        let honoured = HONOURED.iter().map(|(known, ..)| *known);
        let others = NEUTRAL.iter().map(|(known, ..)| *known).chain(HARMLESS.iter().copied());
        refusal::unknown(name, honoured.chain(others).chain(TEXTS).chain(self.own_names.iter().copied()))
    }

    /// That a field is missing, with the one that was perhaps to be it.
    pub fn missing(&self, name: &'static str) -> Refusal {
        let unknown = self.rest.keys().map(String::as_str).filter(|given| !is_known(given) && !TEXTS.contains(given));
        refusal::missing(name, &format!("there are no {name}"), unknown)
    }

    /// Refuses what is left, unless it asks for nothing.
    pub fn finish(self) -> Checked<()> {
        let unread = [("messages", self.messages.is_some()), ("input", self.input.is_some())];
        if let Some((name, _)) = unread.into_iter().find(|(_, given)| *given) {
            return Err(refusal::unknown(name, []));
        }
        for (name, value) in self.rest.iter().filter(|(_, value)| !value.is_null()) {
            let (_, neutral, expected) =
                NEUTRAL.iter().find(|(known, ..)| known == name).ok_or_else(|| self.unknown(name))?;
            let is_neutral = |known: &&str| serde_json::from_str(known).is_ok_and(|known| asks_for(value, &known));
            if !neutral.iter().any(is_neutral) {
                return Err(refusal::unsupported(name, expected));
            }
        }
        Ok(())
    }
}

/// A field that is not as it has to be.
pub fn wrong(name: &str, cause: &dyn fmt::Display) -> Refusal {
    Refusal::invalid(name, format!("{name} is not what is wanted here: {}", parser_words(cause)))
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let (mut fields, budget) = (Fields::default(), Budget::default());
                while let Some(name) = map.next_key::<String>()? {
                    budget.take(name.len())?;
                    if fields.rest.contains_key(&name) {
                        return Err(A::Error::custom(format!("the field {name:.40} stands there twice")));
                    }
                    let mut value = Value::Null;
                    match name.as_str() {
                        "prompt" => fields.prompt = Some(map.next_value()?),
                        "context" => fields.context = Some(map.next_value()?),
                        "messages" => fields.messages = map.next_value()?,
                        "input" => fields.input = map.next_value()?,
                        "metadata" => fields.metadata = map.next_value()?,
                        name if HARMLESS.contains(&name) => drop(map.next_value::<IgnoredAny>()?),
                        _ => value = map.next_value_seed(BoundedValue(&budget))?,
                    }
                    fields.rest.insert(name, value);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'de> Deserialize<'de> for PromptInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrList;
        impl<'de> Visitor<'de> for TextOrList {
            type Value = PromptInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<PromptInput, E> {
                Ok(PromptInput::One(text.into()))
            }

            fn visit_string<E>(self, text: String) -> Result<PromptInput, E> {
                Ok(PromptInput::One(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptInput, A::Error> {
                let (mut ids, mut prompts) = (Vec::new(), Vec::new());
                while let Some(element) = list.next_element()? {
                    match element {
                        Element::Id(id) => ids.push(id),
                        Element::Prompt(_) if prompts.len() == MOST_PROMPTS => {
                            return Err(A::Error::custom(format!("prompt has more than {MOST_PROMPTS} prompts")));
                        }
                        Element::Prompt(prompt) => prompts.push(prompt),
                    }
                }
                match (ids.is_empty(), prompts.len()) {
                    (_, 0) => Ok(PromptInput::One(Prompt::Tokens(ids))),
                    (false, _) => Err(A::Error::custom("prompt has token ids beside texts or lists, expected either")),
                    (true, 1) => Ok(PromptInput::One(prompts.remove(0))),
                    _ => Ok(PromptInput::Many(prompts)),
                }
            }
        }
        deserializer.deserialize_any(TextOrList)
    }
}

/// An element of `prompt`.
enum Element {
    Id(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdOrPrompt;
        impl<'de> Visitor<'de> for IdOrPrompt {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id, a text, or a list of token ids")
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                id.try_into().map(Element::Id).map_err(|_| E::custom(format!("{id} is no token id")))
            }

            fn visit_str<E>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(text.into()))
            }

            fn visit_string<E>(self, text: String) -> Result<Element, E> {
                Ok(Element::Prompt(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Prompt(Prompt::Tokens(ids)))
            }
        }
        deserializer.deserialize_any(IdOrPrompt)
    }
}

/// `attention`: a method's name, or its name beside its sizes, as the admin API's `method` wants it.
pub fn method(value: Value) -> Checked<Value> {
    let named = |name: Value, sizes: Value| match name {
        Value::String(name) => Ok(json!({ name: sizes })),
        other => Err(wrong("attention", &format_args!("its method is {other:.40}, expected a name"))),
    };
    match value {
        Value::Object(mut sizes) => match sizes.remove("method") {
            Some(name) => named(name, Value::Object(sizes)),
            None => Err(wrong("attention", &"it has no `method`")),
        },
        name => named(name, json!({})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: Value) -> Fields {
        serde_json::from_str(&body.to_string()).unwrap()
    }

    #[test]
    fn a_prompt_is_one_text_or_one_list_of_ids() {
        let prompt = |prompt: Value| fields(json!({ "prompt": prompt })).prompt.unwrap();
        let ids = || Prompt::Tokens(vec![1, 2]);
        assert_eq!(prompt(json!("a")), PromptInput::One("a".into()));
        assert_eq!(prompt(json!(["a"])), PromptInput::One("a".into()));
        assert_eq!(prompt(json!([1, 2])), PromptInput::One(ids()));
        assert_eq!(prompt(json!([[1, 2]])), PromptInput::One(ids()));
        assert_eq!(prompt(json!(["a", "b"])), PromptInput::Many(vec!["a".into(), "b".into()]));
        assert_eq!(
            prompt(json!([[1], [2]])),
            PromptInput::Many(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])])
        );
        let many = |count: usize| json!({ "prompt": vec!["a"; count] });
        assert!(serde_json::from_value::<Fields>(many(MOST_PROMPTS)).is_ok());
        for wrong in [
            many(MOST_PROMPTS + 1),
            json!({"prompt": ["a", 1]}),
            json!({"prompt": [-1]}),
            json!({"prompt": [1.5]}),
            json!({"prompt": {}}),
            json!([1]),
        ] {
            assert!(serde_json::from_value::<Fields>(wrong.clone()).is_err(), "{wrong}");
        }
        for twice in [r#"{"seed": 1, "seed": 2}"#, r#"{"attention": {"method": "star", "method": "dense"}}"#] {
            let refused = serde_json::from_str::<Fields>(twice).unwrap_err().to_string();
            assert!(refused.contains("stands there twice"), "{refused}");
        }
    }

    #[test]
    fn what_asks_for_nothing_is_taken_and_the_rest_refused_by_name() {
        let left = |name: &str, value: Value| fields(json!({ name: value })).finish().err();
        for (name, value) in [
            ("user", json!("me")),
            ("n", json!(1)),
            ("logprobs", json!(false)),
            ("logprobs", json!(null)),
            ("tools", json!([])),
            ("reasoning", json!({"effort": null})),
            ("length_penalty", json!(1.0)),
            ("verbosity", json!("medium")),
            ("skip_special_tokens", json!(true)),
            ("chat_template_kwargs", json!({})),
            ("anything", json!(null)),
        ] {
            assert!(left(name, value.clone()).is_none(), "{name}: {value}");
        }
        for (name, value, code) in [
            ("n", json!(2), "unsupported_parameter"),
            ("logprobs", json!(true), "unsupported_parameter"),
            ("logprobs", json!(5), "unsupported_parameter"),
            ("tools", json!([{"type": "function"}]), "unsupported_parameter"),
            ("temprature", json!(3), "unknown_parameter"),
        ] {
            assert_eq!(left(name, value.clone()).unwrap().code(), code, "{name}: {value}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_shown_as_it_was_written() {
        let refused = fields(json!({"max_tokens": "5"})).take::<u64>("max_tokens").unwrap_err().to_string();
        let words =
            r#"max_tokens is not what is wanted here: invalid type: string "5", expected a whole number from 0 on"#;
        assert_eq!(refused, words);
    }

    #[test]
    fn a_method_is_named_alone_or_with_its_sizes() {
        assert_eq!(method(json!("dense")).unwrap(), json!({"dense": {}}));
        let sized = json!({"method": "star", "block_tokens": 64});
        assert_eq!(method(sized).unwrap(), json!({"star": {"block_tokens": 64}}));
        for wrong in [json!(3), json!({"block_tokens": 64}), json!({"method": 3})] {
            assert!(method(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
