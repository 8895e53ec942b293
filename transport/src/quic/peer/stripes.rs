//! The lanes of one link, and the parts of large payloads that go over them: who sends which, and who waits for it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, OnceLock},
};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use quinn::{Connection, ReadError, RecvStream, StreamId, VarInt, WriteError};
use tokio::sync::oneshot;

use crate::signal::lock;

/// What a stream of a lane begins with: channel and number of the frame, eight bytes each.
const KEY_BYTES: usize = 16;

/// A part of a payload on its way in: its place in the frame's buffer, and who is told once it is full.
pub(crate) struct PayloadPiece {
    pub place: BytesMut,
    pub bytes: usize,
    pub full: oneshot::Sender<BytesMut>,
}

/// The lanes of one link.
#[derive(Default)]
pub(crate) struct Stripes {
    state: Mutex<State>,
    /// All of them, once they have come.
    ready: OnceLock<Vec<Connection>>,
}

/// A frame of a channel, and a lane.
type Key = ([u8; KEY_BYTES], usize);

#[derive(Default)]
struct State {
    come: Vec<Option<Connection>>,
    is_closed: bool,
    /// Channels whose receiving half lives, and the newest that each side opened.
    channels: HashSet<u64>,
    newest: [Option<u64>; 2],
    pieces: HashMap<Key, Meeting>,
    /// Pieces whose lane is lost, until the link is: that says why.
    lost: Vec<PayloadPiece>,
}

/// A piece and the stream that brings it, whichever came first.
enum Meeting {
    Place(PayloadPiece),
    Stream(oneshot::Sender<PayloadPiece>),
}

impl Stripes {
    /// The lanes, once all have come.
    pub fn ready(&self) -> &[Connection] {
        self.ready.get().map_or(&[], Vec::as_slice)
    }

    /// One of `count` lanes has come; whether all have. Fails where it cannot be one of this link.
    pub fn attach(&self, index: usize, count: usize, lane: Connection) -> Result<bool, &'static str> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err("the link of this lane is closed");
        }
        if state.come.is_empty() {
            state.come.resize_with(count, || None);
        }
        let is_told_so = state.come.len() == count;
        match state.come.get_mut(index) {
            Some(place @ None) if is_told_so => *place = Some(lane),
            _ => return Err("the link has this lane"),
        }
        let all: Option<Vec<Connection>> = state.come.iter().cloned().collect();
        Ok(all.is_some_and(|all| self.ready.set(all).is_ok()))
    }

    /// Ends every lane, and those to come.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.come.iter().flatten().for_each(|lane| lane.close(code, reason));
    }

    /// A receiving half lives from now on.
    pub fn begin(&self, channel: StreamId) {
        let mut state = lock(&self.state);
        let newest = &mut state.newest[channel.initiator() as usize];
        *newest = (*newest).max(Some(channel.index()));
        state.channels.insert(number(channel));
    }

    /// A receiving half is gone, and what was to come for it.
    pub fn end(&self, channel: StreamId) {
        let mut state = lock(&self.state);
        state.channels.remove(&number(channel));
        state.pieces.retain(|(key, _), _| key[..8] != number(channel).to_le_bytes());
    }

    /// `piece` waits for the stream of a lane.
    pub fn expect(&self, (channel, frame): (StreamId, u64), lane: usize, piece: PayloadPiece) {
        let mut state = lock(&self.state);
        let at = (key(channel, frame), lane);
        match state.pieces.remove(&at) {
            // A stream that has broken in the meantime drops the piece, which whoever waits for it notices.
            Some(Meeting::Stream(stream)) => drop(stream.send(piece)),
            _ => drop(state.pieces.insert(at, Meeting::Place(piece))),
        }
    }

    /// The piece that a stream of a lane brings; `None` where nobody waits for it any more.
    fn claim(&self, key: [u8; KEY_BYTES], lane: usize) -> Option<oneshot::Receiver<PayloadPiece>> {
        let mut state = lock(&self.state);
        let (found, place) = oneshot::channel();
        match state.pieces.remove(&(key, lane)) {
            Some(Meeting::Place(piece)) => drop(found.send(piece)),
            // Two streams for one piece: the peer is faulty.
            Some(stream @ Meeting::Stream(_)) => {
                state.pieces.insert((key, lane), stream);
                return None;
            }
            None if state.is_gone(&key) => return None,
            None => drop(state.pieces.insert((key, lane), Meeting::Stream(found))),
        }
        Some(place)
    }
}

impl State {
    /// Whether the receiving half of a frame's channel has ended, other than one that is still to begin.
    fn is_gone(&self, key: &[u8; KEY_BYTES]) -> bool {
        let channel = u64::from_le_bytes(key[..8].try_into().expect("eight bytes"));
        // A stream's lowest bit says who opened it, the next that it goes one way (RFC 9000, section 2.1).
        let (opener, index) = ((channel & 1) as usize, channel >> 2);
        !self.channels.contains(&channel) && self.newest[opener] >= Some(index)
    }
}

fn number(channel: StreamId) -> u64 {
    VarInt::from(channel).into_inner()
}

fn key(channel: StreamId, frame: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number(channel).to_le_bytes());
    key[8..].copy_from_slice(&frame.to_le_bytes());
    key
}

/// Sends a part of a frame's payload over a lane, as a stream of its own.
pub(crate) fn send(
    lane: &Connection,
    (channel, frame): (StreamId, u64),
    part: Bytes,
) -> BoxFuture<'static, Result<(), WriteError>> {
    let lane = lane.clone();
    let key = Bytes::copy_from_slice(&key(channel, frame));
    Box::pin(async move {
        let mut stream = lane.open_uni().await?;
        stream.write_all_chunks(&mut [key, part]).await?;
        // Fails only where the peer wants no more of it, which the channel itself says.
        let _ = stream.finish();
        Ok(())
    })
}

/// Reads a stream of a lane into the piece that it brings. A piece that is dropped tells its channel that the rest never comes.
pub(crate) async fn receive(stripes: &Stripes, lane: usize, mut stream: RecvStream) {
    let mut key = [0; KEY_BYTES];
    if stream.read_exact(&mut key).await.is_err() {
        return;
    }
    let Some(place) = stripes.claim(key, lane) else { return };
    let Ok(mut piece) = place.await else { return };
    while piece.place.len() < piece.bytes {
        match stream.read_chunk(piece.bytes - piece.place.len(), true).await {
            Ok(Some(chunk)) => piece.place.extend_from_slice(&chunk.bytes),
            Err(ReadError::ConnectionLost(_)) => return lock(&stripes.state).lost.push(piece),
            _ => return,
        }
    }
    // A half that is gone needs it no more.
    let _ = piece.full.send(piece.place);
}
