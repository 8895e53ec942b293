//! OpenAI's API over HTTP, on an own listener: what applications speak. Every request becomes a job of the supervisor, or a question
//! to one of its sessions; nothing is scheduled here.

pub mod answers;
pub mod batching;
pub(crate) mod chat;
mod completions;
pub(crate) mod shared;

#[cfg(test)]
mod generated;
mod keys;
pub(crate) mod refusal;
pub mod requests;
mod responses;
mod serving;
mod store;

use std::{net::SocketAddr, sync::Arc};

use actix_web::{HttpMessage, dev::ServiceRequest, web};
use rustls::ServerConfig;

pub use super::openai::batching::batch_run::Open;
pub use crate::cluster::Limits;
use crate::{
    api::{
        admin::Server,
        http::{
            body::intake::Requester,
            error,
            listening::{self, ListenerService},
            origin::OriginRules,
            request,
        },
    },
    cluster::Origins,
    error::CliError,
};
use answers::{connection, running};
use batching::{batch_run, batches, files};
pub use keys::ApiKeys;
use serving::{models, openapi, status, tokens};
pub(crate) use shared::Checked;
pub use shared::{ApiState, ENDPOINTS, FOR_EVERYBODY};
pub use store::{Store, responses::KeptResponses};

/// Most connections at a time, two files each.
const API_CONNECTIONS: usize = 8192;

/// Endpoints of another API on the same listener.
pub type FurtherRoutes = fn(&mut web::ServiceConfig);

/// Listens at `address`, with TLS where there is a certificate.
pub async fn serve(
    address: SocketAddr,
    tls: Option<ServerConfig>,
    (state, further): (ApiState, FurtherRoutes),
) -> Result<Server, CliError> {
    let failed = |error: std::io::Error| CliError::no_listener("OpenAI's API", (address, "[api] listen"), error);
    running::cancel_orphans(&state.supervisor).await;
    responses::hold_again(&state).await;
    let all = state.clone();
    drop(state.runtime.spawn(async move { responses::forget_with_jobs(&all, usize::MAX).await }));
    batch_run::resume(&state);
    let (intake, origins) = (web::Data::new(state.intake.clone()), state.origins.origins.clone());
    let kept_idle = state.kept_idle;
    let data = web::Data::new(state);
    let to = data.clone();
    let service = ListenerService {
        routes: Arc::new(move |app| {
            let queries = web::QueryConfig::default().error_handler(refusal::of_query);
            app.app_data(data.clone()).app_data(intake.clone()).app_data(queries).configure(routes).configure(further);
        }),
        admit: Arc::new(move |request| admit(&to, request)),
        origins,
        on_connect: connection::take_in,
        connections: (API_CONNECTIONS, 2),
        kept_idle,
    };
    listening::listen(address, tls, service).map_err(failed)
}

fn routes(app: &mut web::ServiceConfig) {
    app.service(models::list).service(models::show).service(models::show_of);
    app.service(status::health).service(status::version).service(openapi::openapi);
    app.service(tokens::tokenize).service(tokens::detokenize);
    app.service(chat::complete).service(completions::complete);
    app.service(responses::create).service(responses::show).service(responses::cancel);
    app.service(files::create)
        .service(files::list)
        .service(files::download)
        .service(files::show)
        .service(files::delete);
    app.service(batches::create).service(batches::list).service(batches::show).service(batches::cancel);
}

/// What pages in browsers may ask of OpenAI's API, which wants a key or not.
pub fn origins(open: bool, origins: Origins) -> OriginRules {
    let let_in = Some("name their origins in [api] allow_origins of the cluster file");
    OriginRules { open, origins, let_in, close: "[api] api_key_file" }
}

/// Refuses a request of who may not make it, and one too many of who may.
fn admit(state: &ApiState, request: &ServiceRequest) -> Checked<()> {
    connection::count(request.request());
    state.origins.check(request)?;
    let pattern = request.match_pattern().unwrap_or_default();
    let keys = state.keys.as_ref().filter(|_| !FOR_EVERYBODY.contains(&pattern.as_str()));
    let borne = keys.map(|keys| keys.admit(request.headers())).transpose()?;
    request::check_cluster(request.headers(), (&state.cluster, None))?;
    if !ENDPOINTS.contains(&(request.method().as_str(), &*pattern)) {
        let methods = ENDPOINTS.iter().filter(|(_, path)| *path == pattern).map(|(method, _)| *method);
        return Err(error::nothing_at(request.request(), &request::allowed(&pattern, methods)));
    }
    if let Some(borne) = borne {
        request.extensions_mut().insert(Requester(Some(borne.name.clone())));
        request.extensions_mut().insert(borne.place.clone());
        request.extensions_mut().insert(borne);
    }
    Ok(())
}
