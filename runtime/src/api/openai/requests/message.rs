//! Messages of a conversation as they are written in JSON: who speaks, the text and calls of tools, and nothing else of them is kept. Decides
//! on no order.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::once::{BoundedValue, Budget};

/// Most messages of a conversation.
const MOST_MESSAGES: usize = 65_536;

/// An element of `messages` or `input`.
#[derive(Debug, Default, PartialEq)]
pub struct Message {
    /// Whether it is an object at all.
    pub is_object: bool,
    /// `type`, where it is given.
    pub kind: Option<Word>,
    /// `role`, where it is a text.
    pub role: Option<Word>,
    /// What it says.
    pub content: Content,
    /// Tools that it calls, or the one that an item is the call of.
    pub calls: Vec<CallIn>,
    /// The call that it answers: `tool_call_id`, or `call_id` of an item.
    pub call_id: Option<String>,
    /// `name`.
    pub name: Option<String>,
    /// `arguments` of an item.
    pub arguments: Option<String>,
    /// `output` of an item.
    pub output: Content,
}

/// A call as it is written.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CallIn {
    /// Its id.
    pub id: Option<String>,
    /// Whom it calls.
    pub function: FunctionIn,
}

/// A function that is called.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FunctionIn {
    /// Name.
    pub name: String,
    /// Arguments, as JSON.
    pub arguments: ArgumentsIn,
}

/// Arguments as JSON, written as a text or as what they are.
#[derive(Debug, Default, PartialEq)]
pub struct ArgumentsIn(pub String);

impl<'de> Deserialize<'de> for ArgumentsIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = BoundedValue(&Budget::of_values(MOST_ARGUMENTS)).deserialize(deserializer)?;
        Ok(Self(match value {
            Value::String(text) => text,
            Value::Null => String::new(),
            value => value.to_string(),
        }))
    }
}

/// Most calls of a message, and values in the arguments of one.
const MOST_CALLS: usize = 128;
const MOST_ARGUMENTS: usize = 16_384;

/// A text of which some are known: none of those is longer.
pub type Word = String;

/// `content` of a message.
#[derive(Debug, Default, PartialEq)]
pub enum Content {
    /// There is none, or something else.
    #[default]
    Missing,
    /// Parts of which one is no text, and its type; empty where it has none, or is a text without one.
    NoText(Word),
    /// A text, or parts that are texts, joined.
    Text(String),
}

/// A conversation as it is given.
#[derive(Debug, PartialEq)]
pub enum Messages {
    /// One text.
    Text(String),
    /// A list of messages.
    List(Vec<Message>),
    /// Something else.
    Other,
}

/// Bytes of a word that are kept: enough to be shown where it is not known.
const WORD_BYTES: usize = 128;

/// The beginning of a text, or none of what is no text.
struct Begun(Option<Word>);

/// What may stand in place of a text: taken without being kept.
macro_rules! ignore_the_rest {
    ($value:expr, $($kind:ident)*) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> { Ok($value) }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> { Ok($value) }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> { Ok($value) }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> { Ok($value) }
        fn visit_unit<E>(self) -> Result<Self::Value, E> { Ok($value) }
        $(ignore_the_rest!(@$kind $value);)*
    };
    (@text $value:expr) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> { Ok($value) }
    };
    (@list $value:expr) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok($value)
        }
    };
    (@object $value:expr) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($value)
        }
    };
}

impl<'de> Deserialize<'de> for Begun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Begun;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Begun, E> {
                Ok(Begun(Some(text[..text.floor_char_boundary(WORD_BYTES)].to_owned())))
            }

            ignore_the_rest!(Begun(None), list object);
        }
        deserializer.deserialize_any(Text)
    }
}

/// The keys of a message and of its parts that are looked at.
#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(field_identifier, rename_all = "snake_case")]
enum PartKey {
    Type,
    Role,
    Content,
    Text,
    ToolCalls,
    #[serde(alias = "call_id")]
    ToolCallId,
    Name,
    Arguments,
    Output,
    #[serde(other)]
    Other,
}

fn twice<E: Error>(name: &str) -> E {
    E::custom(format!("the field {name} stands there twice"))
}

/// A short text of a message, once; what is no text is none.
fn short<'de, A: MapAccess<'de>>(map: &mut A, (name, to): (&str, &mut Option<String>)) -> Result<(), A::Error> {
    let Begun(text) = map.next_value()?;
    if to.is_some() {
        return Err(twice(name));
    }
    *to = text;
    Ok(())
}

/// The calls of a message, once.
fn calls<'de, A: MapAccess<'de>>(map: &mut A, to: &mut Vec<CallIn>) -> Result<(), A::Error> {
    let stated: Option<Vec<CallIn>> = map.next_value()?;
    match (to.is_empty(), stated.unwrap_or_default()) {
        (false, _) => Err(twice("tool_calls")),
        (_, calls) if calls.len() > MOST_CALLS => {
            Err(A::Error::custom(format!("a message has more than {MOST_CALLS} tool_calls")))
        }
        (_, calls) => {
            *to = calls;
            Ok(())
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Message;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
                let mut message = Message { is_object: true, ..Message::default() };
                let (mut kind, mut role, mut content, mut output) = (None, None, None, None);
                while let Some(key) = map.next_key()? {
                    match key {
                        PartKey::Type if kind.replace(map.next_value::<Begun>()?.0).is_some() => {
                            return Err(twice("type"));
                        }
                        PartKey::Role if role.replace(map.next_value::<Begun>()?.0).is_some() => {
                            return Err(twice("role"));
                        }
                        PartKey::Content if content.replace(map.next_value()?).is_some() => {
                            return Err(twice("content"));
                        }
                        PartKey::Output if output.replace(map.next_value()?).is_some() => {
                            return Err(twice("output"));
                        }
                        PartKey::ToolCalls => calls(&mut map, &mut message.calls)?,
                        PartKey::ToolCallId => short(&mut map, ("tool_call_id", &mut message.call_id))?,
                        PartKey::Name => short(&mut map, ("name", &mut message.name))?,
                        PartKey::Arguments => {
                            let arguments = map.next_value::<ArgumentsIn>()?.0;
                            if message.arguments.replace(arguments).is_some() {
                                return Err(twice("arguments"));
                            }
                        }
                        PartKey::Type | PartKey::Role | PartKey::Content | PartKey::Output => {}
                        PartKey::Text | PartKey::Other => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                message.output = output.unwrap_or_default();
                // A type that is no text is none that is known.
                message.kind = kind.map(Option::unwrap_or_default);
                (message.role, message.content) = (role.flatten(), content.unwrap_or_default());
                Ok(message)
            }

            ignore_the_rest!(Message::default(), text list);
        }
        deserializer.deserialize_any(Object)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of parts")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut text = Ok(String::new());
                while let Some(Part(part)) = parts.next_element()? {
                    text = text.and_then(|text| part.map(|part| text + &part));
                }
                Ok(text.map_or_else(Content::NoText, Content::Text))
            }

            ignore_the_rest!(Content::Missing, object);
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

/// The text of a part that is one, or else its type.
struct Part(Result<String, Word>);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Part;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a part of a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
                let (mut kind, mut text) = (None, None);
                while let Some(key) = map.next_key()? {
                    match key {
                        PartKey::Type if kind.replace(map.next_value::<Begun>()?.0).is_some() => {
                            return Err(twice("type"));
                        }
                        PartKey::Text if text.replace(map.next_value::<Content>()?).is_some() => {
                            return Err(twice("text"));
                        }
                        PartKey::Type | PartKey::Text => {}
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                let kind = kind.flatten().unwrap_or_default();
                let is_text = ["text", "input_text", "output_text"].contains(&kind.as_str());
                Ok(Part(match text {
                    Some(Content::Text(text)) if is_text => Ok(text),
                    _ if is_text => Err(Word::new()),
                    _ => Err(kind),
                }))
            }

            ignore_the_rest!(Part(Err(Word::new())), text list);
        }
        deserializer.deserialize_any(Object)
    }
}

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrList;
        impl<'de> Visitor<'de> for TextOrList {
            type Value = Messages;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of messages")
            }

            fn visit_str<E>(self, text: &str) -> Result<Messages, E> {
                Ok(Messages::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Messages, E> {
                Ok(Messages::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Messages, A::Error> {
                let mut messages = Vec::new();
                while let Some(message) = list.next_element()? {
                    if messages.len() == MOST_MESSAGES {
                        return Err(A::Error::custom(format!("there are more than {MOST_MESSAGES} messages")));
                    }
                    messages.push(message);
                }
                Ok(Messages::List(messages))
            }

            ignore_the_rest!(Messages::Other, object);
        }
        deserializer.deserialize_any(TextOrList)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Messages {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_is_not_looked_at_is_not_kept() {
        let rest = r#""names": {"a": [1, {"b": null}]}, "annotations": [], "": 0, "refusal": null"#;
        let text =
            format!(r#"[{{"role": "user", {rest}, "content": [{{"type": "text", "text": "a", {rest}}}]}}, 3, {{}}]"#);
        let stated = Message { role: Some("user".into()), content: Content::Text("a".into()), ..empty() };
        assert_eq!(read(&text), Messages::List(vec![stated, Message::default(), empty()]));
    }

    fn empty() -> Message {
        Message { is_object: true, ..Message::default() }
    }

    #[test]
    fn a_content_is_text_or_parts_that_are() {
        let content = |text: &str| serde_json::from_str::<Content>(text).unwrap();
        assert_eq!(content(r#""a\u00e9""#), Content::Text("aé".into()));
        assert_eq!(
            content(r#"[{"type": "input_text", "text": "a"}, {"text": "b", "type": "text"}]"#),
            Content::Text("ab".into())
        );
        assert_eq!(content("[]"), Content::Text(String::new()));
        for no_text in
            [r#"[{"type": "text"}]"#, r#"["a"]"#, r#"[{"type": "text", "text": 3}]"#, r#"[{"text": "a"}]"#, "[[]]"]
        {
            assert_eq!(content(no_text), Content::NoText(Word::new()), "{no_text}");
        }
        let image = r#"[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "file"}]"#;
        assert_eq!(content(image), Content::NoText("image_url".into()));
        for missing in ["null", "3", "-1.5", "true", r#"{"text": "a"}"#] {
            assert_eq!(content(missing), Content::Missing, "{missing}");
        }
    }

    #[test]
    fn what_counts_stands_there_once() {
        for text in [
            r#"[{"role": "user", "role": "system"}]"#,
            r#"[{"content": "a", "content": "b"}]"#,
            r#"[{"content": [{"type": "text", "text": "a", "text": "b"}]}]"#,
        ] {
            assert!(
                serde_json::from_str::<Messages>(text).is_err_and(|error| error.to_string().contains("twice")),
                "{text}"
            );
        }
        let long = "x".repeat(1 << 20);
        let Messages::List(messages) = read(&format!(r#"[{{"role": "{long}", "type": 3}}]"#)) else { panic!() };
        assert_eq!((messages[0].role.as_ref().unwrap().len(), messages[0].kind.as_deref()), (WORD_BYTES, Some("")));
        let many = format!("[{}3]", "3,".repeat(MOST_MESSAGES));
        assert!(serde_json::from_str::<Messages>(&many).is_err());
    }
}
