//! Frames over one bidirectional QUIC stream. Opens and closes no connection.

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, future::BoxFuture};
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};
use tokio::sync::oneshot;

use crate::{
    Channel, Frame, FrameError, FrameReceiver, FrameSender, TransportError,
    frame::codec::{Decoded, Encoder, FrameDecoder, Parted, STRIPED_FROM, cut},
    quic::{
        lanes::MOST_LANES,
        peer::{
            Peer,
            stripes::{self, PayloadPiece},
        },
    },
};

/// Sent to a peer whose bytes were not frames.
const REFUSED: VarInt = VarInt::from_u32(1);
/// Sent to a peer that will not get the rest of a frame.
const ABANDONED: VarInt = VarInt::from_u32(2);

pub(crate) fn over((send, receive): (SendStream, RecvStream), peer: &Arc<Peer>) -> Channel {
    peer.stripes.begin(receive.id());
    let sender = QuicSender {
        stream: send,
        encoder: Encoder::default(),
        unsent: Default::default(),
        uncounted: 0,
        stopped: None,
        parted: 0,
        parts: Vec::new(),
        peer: peer.clone(),
    };
    let receiver = QuicReceiver {
        stream: receive,
        chunk: Bytes::new(),
        decoder: FrameDecoder::with(peer.buffers.clone(), MOST_LANES),
        refused: None,
        parted: 0,
        missing: VecDeque::new(),
        unfinished: None,
        lost: None,
        peer: peer.clone(),
    };
    Channel { sender: Box::new(sender), receiver: Box::new(receiver) }
}

struct QuicSender {
    stream: SendStream,
    encoder: Encoder,
    /// What is left of the last frame, so that one whose sending is given up is not torn apart.
    unsent: [Bytes; 4],
    /// Bytes of the last frame, until they are counted.
    uncounted: usize,
    /// While the windows are full: the peer's word that it reads no further.
    stopped: Option<BoxFuture<'static, Result<Option<VarInt>, StoppedError>>>,
    /// Frames of which parts went over lanes.
    parted: u64,
    /// Parts of the last frame that lanes have not taken yet.
    parts: Vec<BoxFuture<'static, Result<(), WriteError>>>,
    peer: Arc<Peer>,
}

impl QuicSender {
    /// Hands everything to QUIC in one call where the windows allow, so that a small frame leaves in one datagram.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let parts = self.poll_parts(context)?;
        while self.unsent.iter().any(|chunk| !chunk.is_empty()) {
            let written = pin!(self.stream.write_chunks(&mut self.unsent)).poll(context);
            match written {
                Poll::Ready(Ok(_)) => self.stopped = None,
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => return Poll::Ready(Err(self.peer.lost(error))),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(self.channel_closed())),
                Poll::Pending => return self.poll_stopped(context).map(Err),
            }
        }
        ready!(parts);
        match std::mem::take(&mut self.uncounted) {
            0 => {}
            bytes => self.peer.observer.bytes(true, bytes),
        }
        Poll::Ready(Ok(()))
    }

    /// Hands lanes their parts, all at once.
    fn poll_parts(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let mut failed = None;
        self.parts.retain_mut(|part| match part.as_mut().poll(context) {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(error)) => {
                failed = Some(error);
                false
            }
            Poll::Pending => true,
        });
        match failed {
            Some(WriteError::ConnectionLost(error)) => Poll::Ready(Err(self.peer.lost_lane(error))),
            Some(_) => Poll::Ready(Err(self.channel_closed())),
            None if self.parts.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    /// Spreads the payload over the lanes, if it is worth it; the first part stays.
    fn part(&mut self, frame: Frame) -> Result<[Bytes; 4], FrameError> {
        let lanes = self.peer.stripes.ready();
        if lanes.is_empty() || frame.payload.len() < STRIPED_FROM {
            return self.encoder.encode(frame, 0);
        }
        let mut chunks = self.encoder.encode(frame, lanes.len())?;
        let payload = std::mem::take(&mut chunks[3]);
        let mut cuts = cut(payload.len(), lanes.len() + 1);
        chunks[3] = payload.slice(cuts.next().expect("the first part"));
        let at = (self.stream.id(), self.parted);
        self.parts = lanes.iter().zip(cuts).map(|(lane, cut)| stripes::send(lane, at, payload.slice(cut))).collect();
        self.parted += 1;
        Ok(chunks)
    }

    /// quinn does not wake a writer whose stream is stopped while stream and connection windows are both full.
    fn poll_stopped(&mut self, context: &mut Context<'_>) -> Poll<TransportError> {
        let stopped = self.stopped.get_or_insert_with(|| Box::pin(self.stream.stopped()));
        let stopped = ready!(stopped.as_mut().poll(context));
        self.stopped = None;
        Poll::Ready(match stopped {
            Err(StoppedError::ConnectionLost(error)) => self.peer.lost(error),
            _ => self.channel_closed(),
        })
    }

    fn channel_closed(&self) -> TransportError {
        TransportError::ChannelClosed { peer: self.peer.address }
    }
}

impl FrameSender for QuicSender {
    fn poll_send(&mut self, context: &mut Context<'_>, next: &mut Option<Frame>) -> Poll<Result<(), TransportError>> {
        ready!(self.poll_flush(context))?;
        let Some(frame) = next.take() else { return Poll::Ready(Ok(())) };
        let bytes = frame.wire_bytes();
        self.unsent = self.part(frame)?;
        self.uncounted = bytes;
        self.poll_flush(context)
    }
}

impl Drop for QuicSender {
    fn drop(&mut self) {
        if self.unsent.iter().any(|chunk| !chunk.is_empty()) {
            // Fails only where the stream has ended anyway.
            let _ = self.stream.reset(ABANDONED);
        }
    }
}

struct QuicReceiver {
    stream: RecvStream,
    chunk: Bytes,
    decoder: FrameDecoder,
    /// Why this stream is read no further.
    refused: Option<FrameError>,
    /// Frames of which parts came over lanes.
    parted: u64,
    /// Parts of the last such frame that have not come yet, and what came over this stream once all of that has.
    missing: VecDeque<oneshot::Receiver<BytesMut>>,
    unfinished: Option<Parted>,
    /// While parts are missing: the end of the link.
    lost: Option<BoxFuture<'static, ConnectionError>>,
    peer: Arc<Peer>,
}

impl QuicReceiver {
    fn decode(&mut self) -> Result<Option<Decoded>, FrameError> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        self.decoder.next(&mut self.chunk).inspect_err(|error| {
            self.refused = Some(error.clone());
            self.peer.observer.rejected("frame");
            // Fails only where the stream has ended anyway.
            let _ = self.stream.stop(REFUSED);
        })
    }

    /// Lanes put their parts into these places.
    fn expect(&mut self, places: Vec<(BytesMut, usize)>) {
        let at = (self.stream.id(), self.parted);
        self.parted += 1;
        for (lane, (place, bytes)) in places.into_iter().enumerate() {
            let (full, missing) = oneshot::channel();
            self.peer.stripes.expect(at, lane, PayloadPiece { place, bytes, full });
            self.missing.push_back(missing);
        }
    }

    /// Waits for the parts, in order, whichever comes first.
    fn poll_parts(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        while let Some(first) = self.missing.front_mut() {
            match first.poll_unpin(context) {
                Poll::Ready(Ok(place)) => {
                    self.unfinished.as_mut().expect("it waits for these").join(place);
                    self.missing.pop_front();
                }
                // Its sender was given up.
                Poll::Ready(Err(_)) => {
                    self.refused = Some(FrameError::Truncated);
                    return Poll::Ready(Err(FrameError::Truncated.into()));
                }
                Poll::Pending => {
                    let connection = &self.peer.connection;
                    let lost = self.lost.get_or_insert_with(|| {
                        let connection = connection.clone();
                        Box::pin(async move { connection.closed().await })
                    });
                    let error = ready!(lost.as_mut().poll(context));
                    self.lost = None;
                    return Poll::Ready(Err(self.peer.lost(error)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl FrameReceiver for QuicReceiver {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>> {
        loop {
            if self.unfinished.is_some() {
                ready!(self.poll_parts(context))?;
            }
            let frame = match self.unfinished.take() {
                Some(whole) => Some(Decoded::Frame(whole.finish(&self.peer.buffers))),
                None => self.decode()?,
            };
            match frame {
                Some(Decoded::Frame(frame)) => {
                    self.peer.observer.bytes(false, frame.wire_bytes());
                    return Poll::Ready(Ok(Some(frame)));
                }
                Some(Decoded::Begun(places)) => {
                    self.expect(places);
                    continue;
                }
                Some(Decoded::Parted(parted)) => {
                    self.unfinished = Some(parted);
                    continue;
                }
                None => {}
            }
            self.chunk = match ready!(pin!(self.stream.read_chunk(usize::MAX, true)).poll(context)) {
                Ok(Some(chunk)) => chunk.bytes,
                Ok(None) if self.decoder.is_between_frames() => return Poll::Ready(Ok(None)),
                Ok(None) | Err(ReadError::Reset(_)) => return Poll::Ready(Err(FrameError::Truncated.into())),
                Err(ReadError::ConnectionLost(error)) => return Poll::Ready(Err(self.peer.lost(error))),
                Err(_) => return Poll::Ready(Err(TransportError::ChannelClosed { peer: self.peer.address })),
            };
        }
    }
}

impl Drop for QuicReceiver {
    fn drop(&mut self) {
        self.peer.stripes.end(self.stream.id());
    }
}
