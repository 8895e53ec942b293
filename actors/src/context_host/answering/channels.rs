//! The doors of a context host: who comes with queries goes to [`Queries`], who comes with parcels of phase 1 to the inbox.

use std::{sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_transport::{Channel, DataPlane, FrameHeader, Link};
use tokio::sync::{Mutex, Semaphore};

use crate::{
    authority,
    context_host::{
        answering::{
            attending,
            queries::{self, Queries},
            query_service::QueryService,
        },
        error::{ChannelError, Refusal},
        parcels::moving,
    },
    link,
    messages::{ChannelOpening, ParcelsTaken, WireMessage},
    metric, probe,
};

/// Channels of one link that are served at a time: a peer has one for each job or context that it works on here.
const CHANNELS: usize = 256;
/// Longest wait of another host's parcels for the order that they belong to.
const ORDER_DEADLINE: Duration = Duration::from_secs(60);

/// Answers every channel that a query host opens, until the plane closes.
pub async fn serve<B: Backend>(plane: Arc<DataPlane>, service: QueryService<B>) {
    while let Some(link) = plane.accept().await {
        tokio::spawn(serve_link(link, service.clone()));
    }
}

async fn serve_link<B: Backend>(link: Arc<dyn Link>, service: QueryService<B>) {
    let peer = link::peer_name(link.as_ref());
    let places = Arc::new(Semaphore::new(CHANNELS));
    while let Ok(channel) = link.accept().await {
        // A channel that finds no place is dropped, which its opener sees.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (service, peer, link) = (service.clone(), peer.clone(), link.clone());
        tokio::spawn(async move {
            let _place = place;
            if let Err(cause) = serve_channel(channel, service, (&link, &peer)).await {
                tracing::warn!(%peer, %cause, "a channel ended early");
            }
        });
    }
}

async fn serve_channel<B: Backend>(
    mut channel: Channel,
    service: QueryService<B>,
    (link, peer): (&Arc<dyn Link>, &str),
) -> Result<(), ChannelError> {
    let Some(first) = channel.receiver.receive().await? else { return Ok(()) };
    let opening = ChannelOpening::read(&first.meta, peer)?;
    authority::admit(link.peer(), &mut None, &opening).inspect_err(|denied| {
        metric::refused(denied.code(), peer, denied);
        link.close(&denied.to_string());
    })?;
    match opening {
        ChannelOpening::Attach(attach) => {
            let Channel { sender, receiver } = channel;
            let replies = Arc::new(Mutex::new(sender));
            let (attached, spans, priority) = Default::default();
            Queries { service, attached, spans, replies, priority, link, peer }.serve(attach, receiver).await
        }
        ChannelOpening::Probe => Ok(probe::answer(channel).await?),
        ChannelOpening::Detach { attachment } | ChannelOpening::Trace { attachment, .. } => {
            Err(Refusal::NotAttached { attachment }.into())
        }
        ChannelOpening::Pass { context, attempt, ticket } => {
            // Parcels may come before the order does; until then they stay in their channel.
            let known = tokio::select! {
                biased;
                known = service.tickets.wait(context) => known,
                error = link.closed() => return Err(error.into()),
                () = tokio::time::sleep(ORDER_DEADLINE) => return Err(ChannelError::NotOrdered { context, waited: ORDER_DEADLINE }),
            };
            if known != ticket {
                return refuse(&mut channel, first.header, queries::wrong_ticket(context, peer)).await;
            }
            let Channel { mut sender, receiver } = channel;
            service.parcel_inbox.take_in((context, attempt), receiver, peer).await?;
            // Who passed them may be gone by now.
            let _ = sender.send(ParcelsTaken { context, attempt }.frame()).await;
            Ok(())
        }
        ChannelOpening::Fetch { context, block, ticket } => match service.tickets.find(context) {
            Some(known) if known == ticket => {
                moving::send(channel.sender, (&service.store, &service.decoder), (context, block)).await
            }
            Some(_) => Err(queries::wrong_ticket(context, peer).into()),
            None => Err(Refusal::Missing { context, block }.into()),
        },
    }
}

/// Says why a channel is closed.
async fn refuse(channel: &mut Channel, asked: FrameHeader, refused: Refusal) -> Result<(), ChannelError> {
    channel.sender.send(attending::refusal(asked, 0, &refused)).await?;
    Err(refused.into())
}
