//! Frames over one bidirectional QUIC stream. Opens and closes no connection.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use quinn::{ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};

use super::Peer;
use crate::{
    Channel, Frame, FrameError, FrameReceiver, FrameSender, TransportError,
    codec::{self, FrameDecoder},
};

/// Sent to a peer whose bytes were not frames.
const REFUSED: VarInt = VarInt::from_u32(1);
/// Sent to a peer that will not get the rest of a frame.
const ABANDONED: VarInt = VarInt::from_u32(2);

pub(super) fn over((send, receive): (SendStream, RecvStream), peer: &Arc<Peer>) -> Channel {
    let sender = QuicSender { stream: send, unsent: Default::default(), peer: peer.clone() };
    let receiver = QuicReceiver {
        stream: receive,
        chunk: Bytes::new(),
        decoder: FrameDecoder::new(),
        refused: None,
        peer: peer.clone(),
    };
    Channel { sender: Box::new(sender), receiver: Box::new(receiver) }
}

struct QuicSender {
    stream: SendStream,
    /// What is left of the last frame, so that a dropped `send` cannot tear one apart.
    unsent: [Bytes; 4],
    peer: Arc<Peer>,
}

impl QuicSender {
    /// Hands everything to QUIC in one call where the windows allow, so that a small frame leaves in one datagram.
    async fn flush(&mut self) -> Result<(), TransportError> {
        while self.unsent.iter().any(|chunk| !chunk.is_empty()) {
            // quinn does not wake a writer whose stream is stopped while stream and connection windows are both full.
            let stopped = self.stream.stopped();
            tokio::select! {
                biased;
                written = self.stream.write_chunks(&mut self.unsent) => written.map(drop).map_err(|error| match error {
                    WriteError::ConnectionLost(error) => self.peer.lost(error),
                    _ => self.channel_closed(),
                })?,
                stopped = stopped => return Err(match stopped {
                    Err(StoppedError::ConnectionLost(error)) => self.peer.lost(error),
                    _ => self.channel_closed(),
                }),
            }
        }
        Ok(())
    }

    fn channel_closed(&self) -> TransportError {
        TransportError::ChannelClosed { peer: self.peer.address }
    }
}

impl FrameSender for QuicSender {
    fn send(&mut self, frame: Frame) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let bytes = frame.wire_bytes();
            let chunks = codec::encode(frame)?;
            self.flush().await?;
            self.unsent = chunks;
            self.flush().await?;
            self.peer.observer.bytes(true, bytes);
            Ok(())
        })
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
    async fn next(&mut self) -> Result<Option<Frame>, TransportError> {
        loop {
            if let Some(frame) = self.decode()? {
                self.peer.observer.bytes(false, frame.wire_bytes());
                return Ok(Some(frame));
            }
            match self.stream.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) => self.chunk = chunk.bytes,
                Ok(None) if self.decoder.is_between_frames() => return Ok(None),
                Ok(None) | Err(ReadError::Reset(_)) => return Err(FrameError::Truncated.into()),
                Err(ReadError::ConnectionLost(error)) => return Err(self.peer.lost(error)),
                Err(_) => return Err(TransportError::ChannelClosed { peer: self.peer.address }),
            }
        }
    }

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
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Frame>, TransportError>> {
        Box::pin(self.next())
    }
}
