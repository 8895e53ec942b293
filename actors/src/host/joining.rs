//! How a process joins its supervisor: a link, a hello, a welcome. Decides nothing about what it is told later.

use std::{sync::Arc, time::Duration};

use asterism_transport::{Link, Places, Transport, TransportError, certificates::MemberRole};
use futures_util::future::select_ok;
use tokio::time::{Instant, timeout};

use crate::{
    authority::{self, Action, Party},
    error::HostError,
    link::{self, Inbox, InboxError, Outbox},
    messages::{Hello, HostCommand, HostMessage},
    metric,
};

/// Longest wait for the answer to a hello.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Waits between attempts to join again double from the first to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Longest that several places are tried at once: one may be stopped and say nothing, while another one comes.
const ROUND: Duration = Duration::from_secs(2);
/// Longest that such rounds go on.
const ROUNDS_END: Duration = Duration::from_secs(10);

/// A supervisor that said welcome.
pub struct Joined {
    /// Where messages to it go.
    pub outbox: Outbox<HostMessage>,
    /// Where its commands come from.
    pub inbox: Inbox,
    /// The link to it.
    pub link: Arc<dyn Link>,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// Which cluster it is of.
    pub cluster: u64,
    /// Which of its host's lives the process is.
    pub incarnation: u64,
}

/// Sends hello and waits for the welcome; where the supervisor is called by a name, that is resolved anew. Who has no certificate of a
/// supervisor receives nothing.
pub async fn join(hello: Hello, supervisor: &Places, transport: &dyn Transport) -> Result<Joined, HostError> {
    let host = hello.name.clone();
    let unreachable = |cause: TransportError| {
        let (host, address) = (host.clone(), supervisor.to_string());
        HostError::Supervisor { host, address, cause: Box::new(cause) }
    };
    let link = connect(supervisor, transport).await.map_err(unreachable)?;
    let party = authority::party(link.peer(), Party::Member(MemberRole::Supervisor));
    if let Err(denied) = authority::check(party, Action::Welcome) {
        let got = link::peer_name(link.as_ref());
        metric::refused(denied.code(), &got, &denied);
        link.close(&denied.to_string());
        return Err(HostError::Impostor { host, address: supervisor.to_string(), got });
    }
    let channel = link.open().await.map_err(unreachable)?;
    let (outbox, mut inbox) = link::control(channel, &link);
    outbox.send(HostMessage::Hello(hello));
    let answer = tokio::time::timeout(ANSWER_DEADLINE, inbox.receive()).await;
    match answer.unwrap_or(Err(InboxError::Silent { waited: ANSWER_DEADLINE })) {
        Ok(HostCommand::Welcome { heartbeat_ms, cluster, incarnation }) => {
            let heartbeat = Duration::from_millis(heartbeat_ms.max(1));
            Ok(Joined { outbox, inbox, link, heartbeat, cluster, incarnation })
        }
        Ok(HostCommand::Refuse { reason }) => Err(HostError::Refused { host, reason }),
        Ok(other) => Err(HostError::Refused { host, reason: format!("it answered hello with {other:?}") }),
        Err(cause) => Err(HostError::Lost { host, cause: cause.to_string() }),
    }
}

/// A link to where somebody answers first.
async fn connect(supervisor: &Places, transport: &dyn Transport) -> Result<Arc<dyn Link>, TransportError> {
    if let [only] = supervisor.all() {
        return transport.connect(only.look_up().await?).await;
    }
    let began = Instant::now();
    loop {
        let tries = supervisor.all().iter().map(|place| {
            Box::pin(async move {
                let address = place.look_up().await?;
                let silent = |_| Err(TransportError::TimedOut { peer: address });
                timeout(ROUND, transport.connect(address)).await.unwrap_or_else(silent)
            })
        });
        match select_ok(tries).await {
            Ok((link, _)) => return Ok(link),
            Err(TransportError::TransportClosed) => return Err(TransportError::TransportClosed),
            Err(error) if began.elapsed() > ROUNDS_END => return Err(error),
            Err(_) => tokio::time::sleep(FIRST_WAIT).await,
        }
    }
}

/// Whether it is of no use to try again.
pub fn is_final(error: &HostError) -> bool {
    match error {
        HostError::Supervisor { cause, .. } => matches!(**cause, TransportError::TransportClosed),
        HostError::Lost { .. } | HostError::Impostor { .. } => false,
        _ => true,
    }
}

/// How long to wait before the next attempt.
#[derive(Default)]
pub struct Backoff {
    waited: Option<Duration>,
}

impl Backoff {
    /// The next wait.
    pub fn next(&mut self) -> Duration {
        let wait = self.waited.map_or(FIRST_WAIT, |waited| (2 * waited).min(LONGEST_WAIT));
        self.waited = Some(wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_second() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..6).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
    }
}
