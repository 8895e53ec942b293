//! Frames over one bidirectional QUIC stream. Opens and closes no connection.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use quinn::{ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};

use super::link::Peer;
use crate::{
    Channel, Frame, FrameError, FrameReceiver, FrameSender, TransportError,
    codec::{Encoder, FrameDecoder},
};

/// Sent to a peer whose bytes were not frames.
const REFUSED: VarInt = VarInt::from_u32(1);
/// Sent to a peer that will not get the rest of a frame.
const ABANDONED: VarInt = VarInt::from_u32(2);

pub(super) fn over((send, receive): (SendStream, RecvStream), peer: &Arc<Peer>) -> Channel {
    let sender = QuicSender {
        stream: send,
        encoder: Encoder::default(),
        unsent: Default::default(),
        uncounted: 0,
        stopped: None,
        peer: peer.clone(),
    };
    let receiver = QuicReceiver {
        stream: receive,
        chunk: Bytes::new(),
        decoder: FrameDecoder::with(peer.buffers.clone()),
        refused: None,
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
    peer: Arc<Peer>,
}

impl QuicSender {
    /// Hands everything to QUIC in one call where the windows allow, so that a small frame leaves in one datagram.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        while self.unsent.iter().any(|chunk| !chunk.is_empty()) {
            let written = pin!(self.stream.write_chunks(&mut self.unsent)).poll(context);
            match written {
                Poll::Ready(Ok(_)) => self.stopped = None,
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => return Poll::Ready(Err(self.peer.lost(error))),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(self.channel_closed())),
                Poll::Pending => return self.poll_stopped(context).map(Err),
            }
        }
        match std::mem::take(&mut self.uncounted) {
            0 => {}
            bytes => self.peer.observer.bytes(true, bytes),
        }
        Poll::Ready(Ok(()))
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
        self.unsent = self.encoder.encode(frame)?;
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
    peer: Arc<Peer>,
}

impl QuicReceiver {
    fn decode(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        self.decoder.decode(&mut self.chunk).inspect_err(|error| {
            self.refused = Some(error.clone());
            self.peer.observer.rejected("frame");
            // Fails only where the stream has ended anyway.
            let _ = self.stream.stop(REFUSED);
        })
    }
}

impl FrameReceiver for QuicReceiver {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>> {
        loop {
            if let Some(frame) = self.decode()? {
                self.peer.observer.bytes(false, frame.wire_bytes());
                return Poll::Ready(Ok(Some(frame)));
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
