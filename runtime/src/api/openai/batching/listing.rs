//! Which entries of a list are shown: `after`, `limit` and `order`. Reads no entry.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{http::error::Refusal, openai::Checked};

/// Behind the `?` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PageQuery {
    pub after: Option<String>,
    pub limit: Option<usize>,
    pub order: Option<String>,
    pub purpose: Option<String>,
}

/// Some entries of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// Those that are shown.
    pub entries: Vec<T>,
    /// Whether there are more behind them.
    pub has_more: bool,
}

impl PageQuery {
    /// The entries that are asked for, of those that come oldest first, with their ids. `lengths`: how many where nothing is said,
    /// and at most.
    pub fn page<T>(
        &self,
        entries: &mut dyn DoubleEndedIterator<Item = (&str, T)>,
        (usual, most): (usize, usize),
    ) -> Checked<Page<T>> {
        let limit = self.limit.unwrap_or(usual);
        if !(1..=most).contains(&limit) {
            return Err(Refusal::invalid("limit", format!("limit is {limit}, expected 1 to {most}")));
        }
        match self.order.as_deref() {
            Some("asc") => Ok(self.cut(entries, limit)),
            None | Some("desc") => Ok(self.cut(entries.rev(), limit)),
            Some(_) => Err(Refusal::invalid("order", "order is something else, expected asc or desc")),
        }
    }

    fn cut<'a, T>(&self, entries: impl Iterator<Item = (&'a str, T)>, limit: usize) -> Page<T> {
        let mut entries = entries.peekable();
        if let Some(after) = &self.after {
            while entries.next().is_some_and(|(id, _)| id != after) {}
        }
        let shown = entries.by_ref().take(limit).map(|(_, entry)| entry).collect();
        Page { entries: shown, has_more: entries.peek().is_some() }
    }
}

/// A list as clients read it.
pub fn listed(Page { entries, has_more }: Page<Value>) -> Value {
    let id = |entry: Option<&Value>| entry.map(|entry| entry["id"].clone());
    json!({ "object": "list", "first_id": id(entries.first()), "last_id": id(entries.last()), "has_more": has_more, "data": entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(listing: &PageQuery) -> Checked<Page<u32>> {
        let entries = [("a", 1), ("b", 2), ("c", 3)];
        listing.page(&mut entries.into_iter(), (2, 10))
    }

    fn listing(after: Option<&str>, limit: Option<usize>, order: Option<&str>) -> PageQuery {
        PageQuery { after: after.map(str::to_owned), limit, order: order.map(str::to_owned), purpose: None }
    }

    #[test]
    fn lists_are_cut_as_asked() {
        for (after, limit, order, entries, has_more) in [
            (None, None, None, &[3, 2][..], true),
            (None, Some(3), Some("desc"), &[3, 2, 1], false),
            (None, Some(1), Some("asc"), &[1], true),
            (Some("b"), Some(1), Some("asc"), &[3], false),
            (Some("b"), None, None, &[1], false),
            (Some("nobody"), None, None, &[], false),
        ] {
            let expected = Page { entries: entries.to_vec(), has_more };
            assert_eq!(page(&listing(after, limit, order)).unwrap(), expected, "{after:?} {limit:?} {order:?}");
        }
        for wrong in [listing(None, Some(0), None), listing(None, Some(11), None), listing(None, None, Some("up"))] {
            assert_eq!(page(&wrong).unwrap_err().status(), 400, "{wrong:?}");
        }
    }
}
