//! Whether a client is still there, by its socket: who asked and went away is not worked for. Ends no work itself.

use std::{future::pending, io::ErrorKind, os::fd::AsFd};

use actix_web::{HttpRequest, dev::Extensions, rt::net::TcpStream};
use tokio::io::Interest;

/// A connection's socket, under a number of its own.
struct Socket(std::net::TcpStream);

/// Takes in a connection, so that its requests can look at it.
pub fn take_in(stream: &TcpStream, kept: &mut Extensions) {
    match stream.as_fd().try_clone_to_owned() {
        Ok(socket) => drop(kept.insert(Socket(socket.into()))),
        Err(error) => tracing::debug!(%error, "a client that goes away is noticed late"),
    }
}

/// A client, to be waited for until it goes away.
pub struct ClientConnection {
    socket: Option<TcpStream>,
}

impl ClientConnection {
    /// Whose request it is.
    pub fn of(request: &HttpRequest) -> Self {
        let socket = request.conn_data::<Socket>().and_then(|socket| socket.0.try_clone().ok());
        let socket = socket.and_then(|socket| TcpStream::from_std(socket).ok());
        Self { socket }
    }

    /// Completes when the client has closed its end; never where that cannot be seen.
    pub async fn gone(&self) {
        let Some(socket) = &self.socket else { return pending().await };
        loop {
            let Ok(ready) = socket.ready(Interest::READABLE).await else { return pending().await };
            if ready.is_read_closed() {
                return;
            }
            // A further request that waits its turn: not read here, and not to be told of again.
            let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        }
    }
}
