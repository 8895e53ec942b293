//! The UDP socket beneath QUIC, as tokio drives it, told how much the system takes in one call. Reads no packet.

use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use quinn::{
    AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller,
    udp::{RecvMeta, Transmit},
};

/// What an IP packet leaves for UDP, over IPv6 too.
pub(crate) const LARGEST_DATAGRAM: u16 = u16::MAX - 40 - 8;

/// A socket of tokio's.
pub(crate) struct Socket(Arc<dyn AsyncUdpSocket>);

impl Socket {
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        Ok(Self(TokioRuntime.wrap_udp_socket(socket)?))
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    /// The system segments no more than an IP packet at once, whatever the size of a segment.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(segment) = transmit.segment_size else { return self.0.try_send(transmit) };
        let at_once = (usize::from(LARGEST_DATAGRAM) / segment).max(1) * segment;
        for (index, contents) in transmit.contents.chunks(at_once).enumerate() {
            let segment_size = (contents.len() > segment).then_some(segment);
            let Transmit { destination, ecn, src_ip, .. } = *transmit;
            match self.0.try_send(&Transmit { destination, ecn, contents, segment_size, src_ip }) {
                // What went before is not taken back: the rest is lost, as on a full link, and sent again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && index > 0 => return Ok(()),
                sent => sent?,
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    /// Segments that the system put together are an IP packet at most, which is what one datagram may have.
    fn max_receive_segments(&self) -> usize {
        1
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}
