//! What the admin listener says while the supervisor does not serve: that it lives, and why it waits. One that stands by for another
//! is ready to, which says nothing of who leads.

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{Arc, PoisonError, RwLock},
};

use actix_web::{
    App, HttpResponse, HttpServer,
    body::BoxBody,
    dev::ServiceRequest,
    get,
    middleware::{Next, from_fn},
    web,
};

use rustls::ServerConfig;

use super::{Server, origins};
use crate::{
    api::http::{error::Refusal, listening, request::identify},
    error::CliError,
};

/// Why the supervisor waits.
pub type Cause = Arc<RwLock<Waiting>>;

/// Why a supervisor does not serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// It has not looked yet.
    #[default]
    Begins,
    /// Something is in its way that may pass.
    Hindered {
        /// A stable code.
        code: &'static str,
        /// What it is.
        cause: String,
    },
    /// Another one leads.
    StandsBy(String),
}

impl fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begins => formatter.write_str("it has just been started"),
            Self::Hindered { cause, .. } => formatter.write_str(cause),
            Self::StandsBy(leader) => write!(formatter, "stands by: {leader} leads"),
        }
    }
}

/// Listens at `address` until the supervisor can, with TLS where there is a certificate.
pub fn wait(address: SocketAddr, tls: Option<ServerConfig>, cause: Cause) -> Result<Server, CliError> {
    let failed = |error: std::io::Error| CliError::no_listener("the admin API", (address, "[api] admin_listen"), error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let data = web::Data::new(cause);
    let app = move || {
        App::new()
            // It asks nobody for a token.
            .wrap(from_fn(|request: ServiceRequest, next: Next<BoxBody>| {
                listening::answer(origins(true).check(&request).err(), request, next)
            }))
            .app_data(data.clone())
            .service(live)
            .service(ready)
            .default_service(web::to(refuse))
            .wrap(from_fn(identify))
    };
    let server = HttpServer::new(app).workers(1).shutdown_timeout(1).disable_signals();
    let server = match tls {
        Some(tls) => server.listen_rustls_0_23(listener, tls),
        None => server.listen(listener),
    };
    let server = server.map_err(failed)?.run();
    Ok(Server::spawn(address, server))
}

/// A restart would not help.
#[get("/livez")]
async fn live(cause: web::Data<Cause>) -> HttpResponse {
    HttpResponse::Ok().body(match stated(&cause) {
        standby @ Waiting::StandsBy(_) => format!("ok, {standby}\n"),
        waiting => format!("ok, waits: {waiting}\n"),
    })
}

/// Whoever replaces supervisors one after the other goes on when this one can take over.
#[get("/readyz")]
async fn ready(cause: web::Data<Cause>) -> Result<HttpResponse, Refusal> {
    match stated(&cause) {
        standby @ Waiting::StandsBy(_) => Ok(HttpResponse::Ok().body(format!("{standby}\n"))),
        _ => refuse(cause).await,
    }
}

async fn refuse(cause: web::Data<Cause>) -> Result<HttpResponse, Refusal> {
    Err(match stated(&cause) {
        Waiting::StandsBy(leader) => Refusal::standby(format!("{leader} leads")),
        Waiting::Hindered { code, cause } => Refusal::waiting(code, cause),
        Waiting::Begins => Refusal::waiting("not_ready", Waiting::Begins),
    })
}

fn stated(cause: &Cause) -> Waiting {
    cause.read().unwrap_or_else(PoisonError::into_inner).clone()
}
