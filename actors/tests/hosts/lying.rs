//! A context host that does its work and then says something else: what it answers is changed on its way out.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use asterism_actors::messages::{
    Generate, HostCommand, HostMessage, HostRole, PartialsAnswer, PartialsMeta, WireMessage,
};
use asterism_transport::{
    Channel, Frame, FrameKind, FrameSender, Link, Transport, TransportError, certificates::Member,
};
use futures_util::future::BoxFuture;

use crate::bench::{Bench, Case, JOB, bind};

/// What becomes of the partials that a host answers with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// They go out as they are.
    None,
    /// A value of each is this.
    Value(f32),
    /// The second half is missing.
    Half,
    /// They are said to be of twice as many rows.
    Rows,
    /// They are said to be of other shards.
    Shards,
}

type SharedLie = Arc<Mutex<Lie>>;

/// A transport whose owner lies as it is told.
struct Lying(Arc<dyn Transport>, SharedLie);

struct LyingLink(Arc<dyn Link>, SharedLie);

struct LyingSender(Box<dyn FrameSender>, SharedLie);

impl Transport for Lying {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn local_address(&self) -> SocketAddr {
        self.0.local_address()
    }

    fn offered(&self) -> String {
        self.0.offered()
    }

    fn resolve(&self, offered: &str) -> Result<Option<SocketAddr>, String> {
        self.0.resolve(offered)
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Link>, TransportError>> {
        self.0.connect(address)
    }

    fn accept(&self) -> BoxFuture<'_, Option<Arc<dyn Link>>> {
        Box::pin(async { Some(Arc::new(LyingLink(self.0.accept().await?, self.1.clone())) as Arc<dyn Link>) })
    }

    fn close(&self) {
        self.0.close();
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        self.0.drained()
    }
}

impl Link for LyingLink {
    fn peer_address(&self) -> SocketAddr {
        self.0.peer_address()
    }

    fn peer(&self) -> Option<&Member> {
        self.0.peer()
    }

    fn rtt(&self) -> Option<Duration> {
        self.0.rtt()
    }

    fn open(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        self.0.open()
    }

    fn accept(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async {
            let Channel { sender, receiver } = self.0.accept().await?;
            Ok(Channel { sender: Box::new(LyingSender(sender, self.1.clone())), receiver })
        })
    }

    fn close(&self, reason: &str) {
        self.0.close(reason);
    }

    fn closed(&self) -> BoxFuture<'_, TransportError> {
        self.0.closed()
    }
}

impl FrameSender for LyingSender {
    fn poll_send(&mut self, context: &mut Context<'_>, frame: &mut Option<Frame>) -> Poll<Result<(), TransportError>> {
        let lie = *self.1.lock().expect("no test panics here");
        *frame = frame.take().map(|frame| reported(frame, lie));
        self.0.poll_send(context, frame)
    }

    fn hands_over(&self) -> bool {
        self.0.hands_over()
    }
}

fn reported(frame: Frame, lie: Lie) -> Frame {
    if frame.header.kind != FrameKind::Response || lie == Lie::None {
        return frame;
    }
    let (mut payload, mut meta) =
        (frame.payload.to_vec(), PartialsMeta::read(&frame.meta, "itself").expect("its own words"));
    for part in &mut meta.parts {
        match lie {
            Lie::None => {}
            Lie::Value(value) => payload[..4].copy_from_slice(&value.to_le_bytes()),
            Lie::Half => payload.truncate(payload.len() / 8 * 4),
            Lie::Rows => part.rows *= 2,
            Lie::Shards => {
                let PartialsAnswer::Groups(groups) = &mut part.answer else { continue };
                groups.iter_mut().flatten().for_each(|shard| shard.block += 1);
            }
        }
    }
    Frame::new(frame.header, meta.archive(), payload.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_lies_is_named_and_no_token_changes_by_it() {
    let lies = [Lie::Value(f32::NAN), Lie::Value(f32::INFINITY), Lie::Half, Lie::Rows, Lie::Shards];
    for lie in lies {
        let mut bench = Bench::of(&[("c0", HostRole::Context)]).await;
        let reported = SharedLie::new(Mutex::new(Lie::None));
        let liar = Arc::new(Lying(bind(&bench.network), reported.clone()));
        bench.start_on("c1", HostRole::Context, liar).await;
        bench.start("q0", HostRole::Query).await;
        let case = Case::of("star", 4);
        let holders = vec![bench.encode(&case, "c0", &[0, 2, 3]).await, bench.encode(&case, "c1", &[1]).await];
        let order = case.generate(&holders, 60, 0.0);
        bench.generate("q0", order.clone()).await;
        let honest = bench.line("q0").tokens(0).await;

        bench.line("q0").order(HostCommand::Stop { job: JOB }).await;
        let order = Generate { job: JOB + 1, ..order };
        *reported.lock().expect("no test panics here") = lie;
        bench.generate("q0", order).await;
        let (host, wrong, cause) = bench
            .line("q0")
            .receive(|message| match message {
                HostMessage::Stalled { host, wrong, cause, .. } => Some((host, wrong, cause)),
                HostMessage::Failed { message, .. } => panic!("{lie:?}: {message}"),
                _ => None,
            })
            .await;
        assert_eq!((host.as_str(), wrong), ("c1", true), "{lie:?}: {cause}");
        bench.encode(&case, "c0", &[1]).await;
        let holders = vec![bench.holder("c0", &[0, 1, 2, 3])];
        bench.line("q0").order(HostCommand::Holders { job: JOB + 1, holders }).await;
        assert_eq!(bench.line("q0").tokens(0).await, honest, "{lie:?}");
        bench.shutdown().await;
    }
}
