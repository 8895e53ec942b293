//! `events`: what happened in the running cluster lately, and with `--watch` what happens, a line each.

use asterism_actors::cluster_event::ClusterEvent;
use clap::Args;
use serde_json::Value;

use crate::{
    cli::output,
    client::Client,
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::logging,
};

/// `asterism events`
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Go on with what happens, until interrupted
    #[arg(long, short = 'w')]
    pub watch: bool,
    /// Only what comes behind this event
    #[arg(long, value_name = "ID")]
    pub after: Option<String>,
}

/// Prints them; a watch goes on behind the last one when the supervisor is started again.
pub fn run(globals: &Globals, args: &EventsArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let client = Client::find(globals)?;
    let mut after = args.after.clone();
    if !args.watch {
        let events: Vec<ClusterEvent> =
            client.cluster_events(after.as_deref(), false)?.collect::<Result<_, CliError>>()?;
        match globals.format {
            Format::Json => output::print_json(&events, Format::Json)?,
            format => events.iter().try_for_each(|event| print(event, format))?,
        }
        return Ok(Exit::Success);
    }
    loop {
        let broke = match client.cluster_events(after.as_deref(), true) {
            Ok(events) => follow(globals, events, &mut after)?,
            Err(error) => error,
        };
        if !client.may_come_back() {
            return Err(broke);
        }
        globals.note(format_args!("{}; waiting for it to come back", broke.message));
        client.await_return()?;
    }
}

/// Prints until the stream breaks; returns why it did.
fn follow(
    globals: &Globals,
    events: impl Iterator<Item = Result<ClusterEvent, CliError>>,
    after: &mut Option<String>,
) -> Result<CliError, CliError> {
    for event in events {
        match event {
            Ok(event) => {
                *after = Some(event.id.to_string());
                // One value a line, as it has no end.
                let format = if globals.format == Format::Table { Format::Table } else { Format::Jsonl };
                print(&event, format)?;
            }
            Err(error) => return Ok(error),
        }
    }
    Ok(CliError::unreachable("the supervisor ended"))
}

fn print(event: &ClusterEvent, format: Format) -> Result<(), CliError> {
    match format {
        Format::Table => output::print(&(line(event) + "\n")),
        format => output::print_json(event, if format == Format::Json { Format::Json } else { Format::Jsonl }),
    }
}

/// Time of day (UTC), what happened, and what there is to say of it.
pub fn line(event: &ClusterEvent) -> String {
    let value = serde_json::to_value(event).expect("an event is plain values");
    let fields = value.as_object().expect("an object");
    let stated = fields.iter().filter(|(name, _)| !["id", "time", "event"].contains(&name.as_str()));
    let stated = stated.filter_map(|(name, value)| match value {
        Value::Null | Value::Object(_) | Value::Array(_) => None,
        Value::String(text) if text.contains(' ') => Some(format!(" {name}={text:?}")),
        Value::String(text) => Some(format!(" {name}={text}")),
        Value::Number(number) if number.is_f64() => Some(format!(" {name}={:.3}", number.as_f64()?)),
        value => Some(format!(" {name}={value}")),
    });
    let seconds = event.time as u64 % 86_400;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let what = value["event"].as_str().unwrap_or_default();
    format!("{hours:02}:{minutes:02}:{seconds:02} {what}{}", stated.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_what_and_of_whom() {
        let event = serde_json::json!({
            "id": "1-2", "time": 86_400.0 * 3.0 + 3_723.5, "event": "host_lost", "host": "context-0", "reason": "exited",
            "silent_s": 0.25, "cause": "its process ended",
        });
        let event: ClusterEvent = serde_json::from_value(event).unwrap();
        let stated = "01:02:03 host_lost host=context-0 reason=exited silent_s=0.250 cause=\"its process ended\"";
        assert_eq!(line(&event), stated);
    }
}
