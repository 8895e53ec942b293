//! How lists are cut: by `limit` and by words that are known. Lists nothing itself.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::api::http::error::Refusal;

/// Most entries of one list.
pub const MAX_LISTED: usize = 500;
/// Most words of one filter.
const WORDS: usize = 16;

/// Behind the `?` of a list. Texts, so that what is wrong is refused by its name; which of them a list has, the table of
/// queries says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListQuery {
    state: Option<String>,
    role: Option<String>,
    limit: Option<String>,
    order: Option<String>,
    /// Those behind this one.
    pub after: Option<String>,
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    Desc,
}

impl ListQuery {
    /// At most so many.
    pub fn limit(&self) -> Result<usize, Refusal> {
        let Some(text) = &self.limit else { return Ok(MAX_LISTED) };
        let limit = text.parse().ok().filter(|limit| (1..=MAX_LISTED).contains(limit));
        let got = text.escape_debug();
        limit.ok_or_else(|| Refusal::invalid("limit", format!("limit is {got:.40}, expected 1 to {MAX_LISTED}")))
    }

    /// In these states, of those that are `known`; none: in any.
    pub fn states<T: DeserializeOwned>(&self, known: &str) -> Result<Vec<T>, Refusal> {
        words("state", self.state.as_deref(), known)
    }

    /// With these roles, as above.
    pub fn roles<T: DeserializeOwned>(&self, known: &str) -> Result<Vec<T>, Refusal> {
        words("role", self.role.as_deref(), known)
    }

    /// Whether the oldest come first rather than the newest.
    pub fn oldest_first(&self) -> Result<bool, Refusal> {
        let order = words("order", self.order.as_deref(), "asc or desc")?;
        Ok(order.first() == Some(&Order::Asc))
    }
}

/// Words parted by commas, in any case.
fn words<T: DeserializeOwned>(param: &'static str, text: Option<&str>, known: &str) -> Result<Vec<T>, Refusal> {
    let one = |word: &str| {
        let read = |word: String| serde_json::from_value(word.into());
        read(word.to_lowercase())
            .or_else(|_| read(word.to_uppercase()))
            .map_err(|_| Refusal::invalid(param, format!("{param} is {:.40}, expected {known}", word.escape_debug())))
    };
    text.unwrap_or_default().split(',').filter(|word| !word.is_empty()).take(WORDS).map(one).collect()
}

#[cfg(test)]
mod tests {
    use asterism_actors::api::{JobState, Role};

    use super::*;

    #[test]
    fn lists_are_cut_as_asked_or_not_at_all() {
        let state = |text: &str| ListQuery { state: Some(text.into()), ..ListQuery::default() };
        let limit = |text: &str| ListQuery { limit: Some(text.into()), ..ListQuery::default() };
        assert_eq!(state("running,Failed").states::<JobState>("").unwrap(), [JobState::Running, JobState::Failed]);
        assert_eq!(ListQuery::default().roles::<Role>("").unwrap(), []);
        assert!(state("runing").states::<JobState>("").is_err());
        assert_eq!((limit("3").limit().unwrap(), ListQuery::default().limit().unwrap()), (3, MAX_LISTED));
        for wrong in ["0", "501", "-1", "x", ""] {
            assert!(limit(wrong).limit().is_err(), "{wrong}");
        }
        let order = |text: &str| ListQuery { order: Some(text.into()), ..ListQuery::default() }.oldest_first();
        assert!(order("asc").unwrap() && !order("desc").unwrap() && order("up").is_err());
    }
}
