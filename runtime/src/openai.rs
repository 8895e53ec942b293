//! OpenAI's API over HTTP, on an own listener: what applications speak. Every request becomes a job of the supervisor, or a question
//! to one of its sessions; nothing is scheduled here.

mod answer;
mod ask;
mod batch_run;
mod batches;
mod chat;
mod completions;
mod fields;
mod files;
mod gone;
mod keys;
mod models;
mod refusal;
mod response;
mod responses;
mod running;
mod store;
mod stream;
mod voice;
mod wire;

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use actix_web::{
    App, Error, HttpMessage, HttpServer,
    body::{BoxBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    middleware::{Next, from_fn},
    web,
};
use asterism_actors::supervisor::Supervisor;
use tokio::runtime::Handle;

use crate::{
    error::CliError,
    http::{
        Server,
        error::{self, Refusal},
        intake::Intake,
        origin, pace, request,
    },
    limits,
};
pub use batch_run::Open;
pub use keys::Keys;
pub use store::Store;

/// Every method and path; all of them want a key where there are keys.
pub const ENDPOINTS: &[(&str, &str)] = &[
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/{id}"),
    ("GET", "/v1/files/{id}/content"),
    ("DELETE", "/v1/files/{id}"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{id}"),
    ("POST", "/v1/batches/{id}/cancel"),
];

/// Threads that answer requests.
const WORKERS: usize = 2;
/// Most connections at a time, two files each; where fewer files can be open, a quarter of those.
const MOST_CONNECTIONS: usize = 8192;

/// What handlers work with.
#[derive(Clone)]
pub struct ApiState {
    /// The supervisor.
    pub supervisor: Supervisor,
    /// Its cluster's name.
    pub cluster: String,
    /// Who may ask; everybody where there are none.
    pub keys: Option<Keys>,
    /// When this supervisor started, in seconds since 1970.
    pub since: u64,
    /// Files and batches.
    pub store: Arc<Store>,
    /// Batches that are worked on.
    pub open: Open,
    /// Where they are.
    pub runtime: Handle,
}

/// Listens at `address`.
pub async fn serve(address: SocketAddr, state: ApiState) -> Result<Server, CliError> {
    let failed = |error: std::io::Error| {
        CliError::unreachable(format!("OpenAI's API cannot listen on {address}: {error}"))
            .hint("free the port, or set [api] listen to another (port 0: one is chosen), or take it out")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    running::cancel_orphans(&state.supervisor).await;
    batch_run::resume(&state);
    let intake = web::Data::new(Intake::new(state.supervisor.model()));
    let data = web::Data::new(state);
    let app = move || {
        App::new()
            .wrap(from_fn(authorize))
            .app_data(data.clone())
            .app_data(intake.clone())
            .app_data(web::PathConfig::default().error_handler(error::of_path))
            .app_data(web::QueryConfig::default().error_handler(refusal::of_query))
            .configure(routes)
            .default_service(web::to(error::no_such_path))
            .wrap(from_fn(request::identify))
            .wrap(from_fn(pace::keep))
    };
    let server = HttpServer::new(app)
        .workers(WORKERS)
        .client_request_timeout(pace::HEAD_WITHIN)
        .keep_alive(pace::KEPT_IDLE)
        .on_connect(|connection, kept| {
            pace::take_in(connection, kept);
            gone::take_in(connection, kept);
        })
        .max_connections(MOST_CONNECTIONS.min(limits::raise_open_files() / 4) / WORKERS)
        .shutdown_timeout(1)
        .disable_signals()
        .listen(listener)
        .map_err(failed)?
        .run();
    Ok(Server::spawn(address, server))
}

fn routes(app: &mut web::ServiceConfig) {
    app.service(models::list).service(models::show).service(chat::complete).service(completions::complete);
    app.service(responses::create).service(responses::show).service(responses::cancel);
    app.service(files::create)
        .service(files::list)
        .service(files::download)
        .service(files::show)
        .service(files::delete);
    app.service(batches::create).service(batches::list).service(batches::show).service(batches::cancel);
}

/// Refuses a request of who may not make it, and one too many of who may.
async fn authorize(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let state = request.app_data::<web::Data<ApiState>>().expect("every app of this module has its state");
    let listener = (request.app_config().local_addr().ip().is_loopback(), state.keys.is_none());
    let borne = state.keys.as_ref().map(|keys| keys.admit(request.headers())).transpose();
    let admitted = borne.and_then(|borne| {
        origin::check(request.headers(), listener)?;
        request::check_cluster(request.headers(), &state.cluster)?;
        match request.match_pattern() {
            Some(_) => Ok(borne),
            None => Err(error::nothing_at(request.request())),
        }
    });
    match admitted {
        Err(refused) => Ok(request.error_response(refused)),
        Ok(borne) => {
            if let Some(borne) = borne {
                request.extensions_mut().insert(borne);
            }
            Ok(next.call(request).await?.map_into_boxed_body())
        }
    }
}

/// What a request must be like to be taken: refused otherwise, by the name of its field.
type Checked<T> = Result<T, Refusal>;
