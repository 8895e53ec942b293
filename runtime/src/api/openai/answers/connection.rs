//! Whether a client is still there, by its socket: who asked and went away is not worked for. Ends no work itself.
//!
//! A client that has closed its sending half may still read. Its system tells by what it answers to something that is written: nothing
//! where somebody reads, a reset where nobody does.

use std::{
    future::pending,
    io::ErrorKind,
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use actix_web::{HttpRequest, dev::Extensions, http::Version, rt::net::TcpStream};
use tokio::io::{Interest, Ready};

/// What every client of HTTP/1.1 skips before an answer.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection's socket, under a number of its own.
struct Socket {
    socket: std::net::TcpStream,
    /// Requests so far: of the answer to the one before, some may still be on its way out.
    requests: AtomicU64,
}

/// Takes in a connection, so that its requests can look at it.
pub fn take_in(stream: &TcpStream, kept: &mut Extensions) {
    match stream.as_fd().try_clone_to_owned() {
        Ok(socket) => drop(kept.insert(Socket { socket: socket.into(), requests: AtomicU64::new(0) })),
        Err(error) => tracing::debug!(%error, "a client that goes away is noticed late"),
    }
}

/// Counts a request of a connection, before it is answered.
pub fn count(request: &HttpRequest) {
    if let Some(kept) = request.conn_data::<Socket>() {
        kept.requests.fetch_add(1, Ordering::Relaxed);
    }
}

/// A client, to be waited for until it goes away.
pub struct ClientConnection {
    socket: Option<TcpStream>,
    /// It skips what is written before its answer, and whether that was.
    takes_interim: bool,
    was_probed: AtomicBool,
}

impl ClientConnection {
    /// Whose request it is.
    pub fn of(request: &HttpRequest) -> Self {
        let kept = request.conn_data::<Socket>();
        let is_first = kept.is_some_and(|kept| kept.requests.load(Ordering::Relaxed) <= 1);
        let socket = kept.and_then(|kept| kept.socket.try_clone().ok());
        let socket = socket.and_then(|socket| TcpStream::from_std(socket).ok());
        let is_plain = !request.app_config().secure() && request.version() == Version::HTTP_11;
        Self { socket, takes_interim: is_first && is_plain, was_probed: AtomicBool::new(false) }
    }

    /// Completes when nobody reads the answer any more, of which nothing has been sent.
    pub async fn gone(&self) {
        self.half_closed().await;
        let Some(socket) = self.socket.as_ref().filter(|_| self.takes_interim) else { return };
        let is_known = self.was_probed.swap(true, Ordering::Relaxed);
        if is_known || socket.try_write(INTERIM).is_ok_and(|written| written == INTERIM.len()) {
            self.closed().await;
        }
    }

    /// Completes when the client has closed its sending half; never where that cannot be seen. A further request that waits its turn
    /// is not read here.
    pub async fn half_closed(&self) {
        self.until(Interest::READABLE, Ready::is_read_closed).await;
    }

    /// Completes when the client has closed both halves, which something that is written to it shows.
    pub async fn closed(&self) {
        self.until(Interest::WRITABLE, Ready::is_write_closed).await;
    }

    async fn until(&self, interest: Interest, is_closed: impl Fn(Ready) -> bool) {
        let Some(socket) = &self.socket else { return pending().await };
        loop {
            let Ok(ready) = socket.ready(interest).await else { return pending().await };
            if is_closed(ready) {
                return;
            }
            // What there is beside stays there, and is not to be told of again.
            let _ = socket.try_io(interest, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        }
    }
}
