//! What a listener of HTTP has in common with every other, whichever API it serves: how it takes connections in, and what each request
//! goes through. Knows no endpoint.

use std::{
    any::Any,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::{
    App, Error, HttpServer,
    body::{BoxBody, MessageBody},
    dev::{Extensions, ServerHandle, ServiceRequest, ServiceResponse},
    http::{
        Version,
        header::{HeaderName, HeaderValue},
    },
    middleware::{Next, from_fn},
    rt::net::TcpStream,
    web::{self, ServiceConfig},
};
use rustls::ServerConfig;
use tokio::task::JoinHandle;

use super::{
    cors,
    error::{self, Refusal},
    pace, request,
};
use crate::{api::http::limits, cluster::Origins};

const KEEP_ALIVE_HEADER: HeaderName = HeaderName::from_static("keep-alive");
/// Threads that answer requests.
const WORKERS: usize = 2;
/// Threads of each of them for what would hold others up.
const BLOCKING_THREADS: usize = 2;

/// Refuses a request, or does not.
type Admit = dyn Fn(&ServiceRequest) -> Result<(), Refusal> + Send + Sync;

/// What is served, and to whom.
#[derive(Clone)]
pub struct ListenerService {
    /// Its endpoints, and what their handlers work with.
    pub routes: Arc<dyn Fn(&mut ServiceConfig) + Send + Sync>,
    /// Refuses a request before anything else of it is looked at.
    pub admit: Arc<Admit>,
    /// Whose pages may ask in browsers.
    pub origins: Origins,
    /// Takes in a connection, beside what is done with each.
    pub on_connect: fn(&TcpStream, &mut Extensions),
    /// Most connections at a time, and files that each needs: where few can be open, connections take a third of those.
    pub connections: (usize, usize),
    /// Time that a connection is kept between its requests.
    pub kept_idle: Duration,
}

/// A running listener.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    handle: ServerHandle,
    serving: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Of a server that listens at `address`.
    pub fn spawn(address: SocketAddr, server: actix_web::dev::Server) -> Self {
        Self { address, handle: server.handle(), serving: tokio::spawn(server) }
    }

    /// Ends open requests and the listener.
    pub async fn stop(self) {
        self.handle.stop(false).await;
        let _ = self.serving.await;
    }
}

/// Listens at `address`, with TLS where there is a certificate.
pub fn listen(address: SocketAddr, tls: Option<ServerConfig>, service: ListenerService) -> io::Result<Server> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let (connections, files) = service.connections;
    let (kept_idle, keeps) = (service.kept_idle, format!("timeout={}", service.kept_idle.as_secs()));
    let keeps = HeaderValue::from_str(&keeps).expect("digits are a header's value");
    let (on_connect, most) = (service.on_connect, connections.min(limits::raise_open_files() / 3 / files) / WORKERS);
    let app = move || {
        let ListenerService { routes, admit, origins, .. } = service.clone();
        let keeps = keeps.clone();
        App::new()
            .wrap(from_fn(move |request: ServiceRequest, next: Next<BoxBody>| {
                let refused = admit(&request).err();
                answer(refused, request, next)
            }))
            .app_data(web::PathConfig::default().error_handler(error::of_path))
            .configure(|app| routes(app))
            .default_service(web::to(error::no_such_path))
            .wrap(from_fn(request::identify))
            .wrap(from_fn(move |request: ServiceRequest, next: Next<BoxBody>| {
                cors::answer_cors(origins.clone(), request, next)
            }))
            .wrap(from_fn(move |request: ServiceRequest, next: Next<BoxBody>| {
                announce_kept(keeps.clone(), request, next)
            }))
            // Outermost, as it looks at the end of the answer that is sent.
            .wrap(from_fn(pace::keep))
    };
    let server = HttpServer::new(app)
        .workers(WORKERS)
        .worker_max_blocking_threads(BLOCKING_THREADS)
        .client_request_timeout(pace::HEAD_WITHIN)
        .keep_alive(kept_idle)
        .on_connect(move |connection, kept| {
            let Some(stream) = socket(connection) else { return };
            pace::take_in(stream);
            on_connect(stream, kept);
        })
        .max_connections(most)
        .shutdown_timeout(1)
        .disable_signals();
    let server = match tls {
        Some(tls) => server.listen_rustls_0_23(listener, tls)?,
        None => server.listen(listener)?,
    };
    Ok(Server::spawn(address, server.run()))
}

/// Says how long a connection is kept, and gives one of HTTP/1.0, which knows no chunks, an answer that ends with it.
async fn announce_kept(
    keeps: HeaderValue,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let is_old = request.version() < Version::HTTP_11;
    let mut response = next.call(request).await?.map_into_boxed_body();
    if is_old {
        response.response_mut().head_mut().no_chunking(true);
    } else if response.request().version() == Version::HTTP_11 {
        response.headers_mut().insert(KEEP_ALIVE_HEADER, keeps);
    }
    Ok(response)
}

/// What lies below a connection.
fn socket(connection: &dyn Any) -> Option<&TcpStream> {
    match connection.downcast_ref::<TcpStream>() {
        Some(stream) => Some(stream),
        None => connection.downcast_ref::<TlsStream<TcpStream>>().map(|stream| stream.get_ref().0),
    }
}

/// Answers a request, unless it was refused.
pub async fn answer(
    refused: Option<Refusal>,
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    // Not as an error of this function: what is outside of it would not know the request any more.
    match refused {
        Some(refused) => Ok(request.error_response(refused)),
        None => next.call(request).await,
    }
}
