//! What happens in a cluster, as the admin API tells it.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ClusterEventKind;

/// Something that happened. One JSON object on the admin API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterEvent {
    /// Its place among all that happened in this life of the supervisor.
    pub id: EventId,
    /// When, in seconds since 1970.
    pub time: f64,
    /// What.
    #[serde(flatten)]
    pub update: ClusterEventKind,
}

/// Names an event: the life of the supervisor in which it happened, and which it was of those. As text `LIFE-NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
pub struct EventId {
    /// The supervisor's life, in hexadecimal digits.
    pub life: u64,
    /// Which event, from 1.
    pub number: u64,
}

/// A text that names no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no event has this id: send the `id` of one that was told, such as 18ab3f-7")]
pub struct NoEventId;

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.life, self.number)
    }
}

impl From<EventId> for String {
    fn from(id: EventId) -> Self {
        id.to_string()
    }
}

impl FromStr for EventId {
    type Err = NoEventId;

    fn from_str(text: &str) -> Result<Self, NoEventId> {
        let (life, number) = text.split_once('-').ok_or(NoEventId)?;
        let (life, number) = (u64::from_str_radix(life, 16), number.parse());
        life.ok().zip(number.ok()).map(|(life, number)| Self { life, number }).ok_or(NoEventId)
    }
}

impl TryFrom<String> for EventId {
    type Error = NoEventId;

    fn try_from(text: String) -> Result<Self, NoEventId> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{JobState, Timings},
        cluster_event::JobName,
    };

    #[test]
    fn an_event_is_one_flat_object_and_reads_back() {
        let job = JobName { id: "j".into(), number: 3 };
        let update = ClusterEventKind::JobEnded {
            job,
            state: JobState::Failed,
            code: Some("timeout".into()),
            tokens: 4,
            timings: Timings::default(),
        };
        let event = ClusterEvent { id: EventId { life: 255, number: 7 }, time: 1.5, update };
        let value = serde_json::to_value(&event).expect("plain values");
        let shown = ["id", "event", "job", "state", "code"].map(|name| value[name].as_str().expect("text"));
        assert_eq!(shown, ["ff-7", "job_ended", "j", "FAILED", "timeout"]);
        assert_eq!(serde_json::from_value::<ClusterEvent>(value).expect("the same"), event);
        let moved =
            ClusterEventKind::ShardsMoved { context: 1, shards: 2, took: std::time::Duration::from_millis(1500) };
        let value = serde_json::to_value(&moved).expect("plain values");
        assert_eq!(value, serde_json::json!({"event": "shards_moved", "context": 1, "shards": 2, "took_s": 1.5}));
        assert_eq!(serde_json::from_value::<ClusterEventKind>(value).expect("the same"), moved);
    }

    #[test]
    fn what_names_no_event_is_no_id() {
        for text in ["", "-", "1", "1-", "-1", "x-1", "1-x", "1-2-3", "1-99999999999999999999", "\u{e9}-1"] {
            assert_eq!(text.parse::<EventId>(), Err(NoEventId), "{text:?}");
        }
    }
}
