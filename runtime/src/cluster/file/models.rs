//! `[model]`, or several `[[model]]`, as they are written.

use std::{fmt, path::PathBuf};

use asterism_models::{QuerySeparator, TemplateDate};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    device::Device,
    numbers::{ComputeType, DType, KvDType},
};

/// `[model]`, or one of several `[[model]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// What requests and hosts call it. Absent: that of its folder; of several models only the first may go without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A Hugging Face folder or a GGUF file, relative to the file. Absent: the embedded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// A known shape with random weights instead of a checkpoint, to measure speed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_weights: Option<String>,
    /// Where hosts compute that do not say.
    pub device: Device,
    /// Element type of weights and products.
    pub dtype: DType,
    /// What linear layers but the output head are computed in. Absent: `dtype`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear: Option<ComputeType>,
    /// What attention of many rows is computed in. Absent: `dtype`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_dtype: Option<ComputeType>,
    /// What keys and values are kept in. Absent: `dtype`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<KvDType>,
    /// Longest context accepted. Absent: what the model was trained for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_context_tokens: Option<usize>,
    /// What stands between context and question where a request does not say.
    pub query_separator: QuerySeparator,
    /// The date that the chat template is told where a request does not say, such as "2026-11-25". Absent: when it was submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_date: Option<TemplateDate>,
}

/// The models of a cluster: one as a table, or several as a list of tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSections {
    /// The model of hosts and requests that name none.
    pub first: ModelSection,
    /// The others, each of which has a name.
    pub further: Vec<ModelSection>,
}

impl ModelSections {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &ModelSection> {
        [&self.first].into_iter().chain(&self.further)
    }

    /// The same, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ModelSection> {
        [&mut self.first].into_iter().chain(&mut self.further)
    }
}

impl Default for ModelSection {
    fn default() -> Self {
        Self {
            name: None,
            path: None,
            random_weights: None,
            device: Device::Cpu,
            dtype: DType::F32,
            linear: None,
            attention_dtype: None,
            kv_dtype: None,
            max_context_tokens: None,
            query_separator: QuerySeparator::default(),
            template_date: None,
        }
    }
}

impl Serialize for ModelSections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.further.is_empty() {
            true => self.first.serialize(serializer),
            false => serializer.collect_seq(self.iter()),
        }
    }
}

impl<'de> Deserialize<'de> for ModelSections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = ModelSections;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table [model], or tables [[model]]")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ModelSections, A::Error> {
                let first = ModelSection::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ModelSections { first, further: Vec::new() })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ModelSections, A::Error> {
                let first = list.next_element()?.ok_or_else(|| A::Error::custom("model is a list without a model"))?;
                let mut further = Vec::new();
                while let Some(section) = list.next_element()? {
                    further.push(section);
                }
                Ok(ModelSections { first, further })
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn one_table_is_one_model_and_several_are_several() {
        let one = parse("version = 1\n[model]\nmax_context_tokens = \"1k\"\n", []).unwrap();
        assert_eq!((one.model.first.max_context_tokens, one.model.further.len()), (Some(1024), 0));
        let text = "version = 1\n[[model]]\n[[model]]\nname = \"b\"\npath = \"/b\"\nmax_context_tokens = \"2k\"\n";
        let two = parse(text, []).unwrap();
        assert_eq!(two.model.iter().map(|model| model.name.as_deref()).collect::<Vec<_>>(), [None, Some("b")]);
        assert_eq!(two.model.further[0].max_context_tokens, Some(2048));
        let again = parse(&toml::to_string_pretty(&two).unwrap(), []).unwrap();
        assert_eq!(again, two);
        let refused = |text: &str| parse(&format!("version = 1\n{text}"), []).unwrap_err().to_string();
        assert!(refused("model = []\n").contains("without a model"));
        assert!(refused("[[model]]\nnmae = \"b\"\n").contains("did you mean"), "{}", refused("[[model]]\nnmae = 1\n"));
        assert!(refused("model = 3\n").contains("a table [model], or tables [[model]]"));
    }
}
