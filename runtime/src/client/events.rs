//! What happens in a cluster, as its admin API tells it: read from a stream, and gone on with behind the last event after a break.

use std::{
    io::{BufRead, BufReader, Read},
    thread,
    time::{Duration, Instant},
};

use asterism_actors::cluster_event::ClusterEvent;

use super::{Client, PATIENCE};
use crate::error::{CliError, Exit};

/// How often a supervisor that is gone is looked for.
const EVENTS_RETRY_EVERY: Duration = Duration::from_millis(500);

impl Client {
    /// Events behind `after`, or from the oldest that is kept; without end where they are followed.
    pub fn cluster_events(
        &self,
        after: Option<&str>,
        follow: bool,
    ) -> Result<impl Iterator<Item = Result<ClusterEvent, CliError>> + use<>, CliError> {
        let answer = self.asked(|base| {
            let request = self.bearing(self.agent.get(format!("{base}/api/v1/events?follow={follow}")));
            after.into_iter().fold(request, |request, after| request.header("last-event-id", after)).call()
        })?;
        let (client, body) = (self.clone(), answer.into_body().into_with_config().limit(u64::MAX).reader());
        Ok(data(BufReader::new(body)).map(move |data| match data {
            Ok(data) => serde_json::from_str(&data)
                .map_err(|error| CliError { exit: Exit::JobFailed, ..client.garbled(&error) }),
            Err(error) => Err(CliError::unreachable(format!("the connection to {} broke: {error}", client.base()))
                .hint("`asterism status` shows whether the supervisor still runs")),
        }))
    }
}

impl Client {
    /// Waits until it answers again.
    pub fn await_return(&self) -> Result<(), CliError> {
        let since = Instant::now();
        loop {
            match self.topology() {
                Ok(_) => return Ok(()),
                Err(error) if since.elapsed() > PATIENCE || !self.may_come_back() => return Err(error),
                Err(_) => thread::sleep(EVENTS_RETRY_EVERY),
            }
        }
    }
}

/// The data of each event of a stream of server-sent events, which here is one line.
fn data(stream: BufReader<impl Read>) -> impl Iterator<Item = std::io::Result<String>> {
    stream.lines().filter_map(|line| match line {
        Ok(line) => line.strip_prefix("data: ").map(|data| Ok(data.to_owned())),
        Err(error) => Some(Err(error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_names_and_ids_are_passed_over() {
        let stream = "retry: 2000\n\nid: 1-1\nevent: a\ndata: {\"x\": 1}\n\n: keep-alive\n\nid: 1-2\ndata: {}\n\n";
        let heard: Vec<String> = data(BufReader::new(stream.as_bytes())).map(Result::unwrap).collect();
        assert_eq!(heard, ["{\"x\": 1}", "{}"]);
    }
}
