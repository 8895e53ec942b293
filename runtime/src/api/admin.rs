//! The admin API, the console, health and metrics over HTTP, on an own listener. Every answer comes from the supervisor.

mod bodies;
mod console;
pub(crate) mod door;
pub mod endpoints;
pub(crate) mod link_bench;
mod lists;
mod openapi;
pub(crate) mod running;
pub(crate) mod self_test;
pub(crate) mod shared;
mod waiting;

use std::{net::SocketAddr, sync::Arc};

use actix_web::{dev::ServiceRequest, http::header::AUTHORIZATION, web};
use asterism_actors::authority::{self, Action, Party};
use rustls::ServerConfig;
use subtle::ConstantTimeEq;

use super::http::{error::Refusal, listening::ListenerService, origin::OriginRules};
pub use super::{
    admin::endpoints::jobs::Submitted,
    http::{
        error::{ErrorEnvelope, ErrorObject},
        listening::Server,
        request::{CLUSTER, PLACE, REQUEST_ID},
    },
};
use crate::{
    api::http::{
        error, listening, pace,
        request::{self, bearer_token},
    },
    cluster::Origins,
    error::CliError,
};
pub use bodies::{ApplyConfig, Copied, Drain, Extension, Joining, Replacement, Restart, Token};
use endpoints::{events, health, hosts, jobs, joining, sessions};
pub use lists::MAX_LISTED;
pub use running::Applied;
pub use shared::AdminState;
pub use waiting::{Cause, Waiting, wait};

/// Most connections at a time.
const MOST_ADMIN_CONNECTIONS: usize = 16_384;

/// Listens at `address`, with TLS where there is a certificate.
pub fn serve(address: SocketAddr, tls: Option<ServerConfig>, state: AdminState) -> Result<Server, CliError> {
    let failed = |error: std::io::Error| CliError::no_listener("the admin API", (address, "[api] admin_listen"), error);
    let intake = web::Data::new(state.intake.clone());
    let data = web::Data::new(state);
    let to = data.clone();
    let service = ListenerService {
        routes: Arc::new(move |app| {
            app.app_data(data.clone()).app_data(intake.clone()).configure(routes);
        }),
        admit: Arc::new(move |request| admit(&to, request)),
        origins: Origins::default(),
        on_connect: |_, _| {},
        connections: (MOST_ADMIN_CONNECTIONS, 1),
        kept_idle: pace::KEPT_IDLE,
    };
    listening::listen(address, tls, service).map_err(failed)
}

fn routes(app: &mut web::ServiceConfig) {
    let api = web::scope("/api/v1")
        .service(jobs::submit)
        .service(jobs::list)
        .service(jobs::status)
        .service(jobs::events)
        .service(jobs::delete)
        .service(jobs::cancel)
        .service(hosts::list)
        .service(hosts::show)
        .service(hosts::cordon)
        .service(hosts::uncordon)
        .service(hosts::drain)
        .service(hosts::restart)
        .service(hosts::remove)
        .service(hosts::replace)
        .service(sessions::create)
        .service(sessions::list)
        .service(sessions::show)
        .service(sessions::append)
        .service(sessions::extend)
        .service(sessions::end)
        .service(joining::create_token)
        .service(crate::api::admin::endpoints::config::apply)
        .service(events::events)
        .service(crate::api::admin::endpoints::links::measure)
        .service(crate::api::admin::endpoints::links::show)
        .service(crate::api::admin::endpoints::self_test::start)
        .service(crate::api::admin::endpoints::self_test::show)
        .service(crate::api::admin::endpoints::backup::backup)
        .service(crate::api::admin::endpoints::cluster::topology)
        .service(crate::api::admin::endpoints::cluster::version)
        .service(crate::api::admin::endpoints::cluster::shutdown);
    app.service(openapi::openapi).service(api).service(health::live).service(health::ready).service(health::scrape);
    app.service(console::page).service(console::style).service(console::script);
}

/// What pages in browsers may ask of the admin API, which wants a token or not.
pub(crate) fn origins(open: bool) -> OriginRules {
    OriginRules { open, origins: Origins::default(), let_in: None, close: "[security] token_file" }
}

/// Refuses a request of who may not make it: whoever bears the token is a client, and everybody is where none is wanted.
fn admit(state: &AdminState, request: &ServiceRequest) -> Result<(), Refusal> {
    origins(state.token.is_none()).check(request)?;
    let party = match &state.token {
        Some(token) if !bears(request, token) => Party::Stranger,
        _ => Party::Client,
    };
    let pattern = request.match_pattern().unwrap_or_default();
    match authority::endpoint(request.method().as_str(), &pattern) {
        Some(act) if authority::allows(party, act) => {
            request::check_cluster(request.headers(), (&state.cluster, state.place.as_ref()))
                .and_then(|()| request::check_query((request.method().as_str(), &pattern), request.query_string()))
        }
        // What is not in the table nobody may ask for; that it is not there, a client may know.
        None if party == Party::Client => {
            let methods = authority::TABLE.iter().filter_map(|rule| match rule.act {
                Action::Http(method, path) if path == pattern => Some(method),
                _ => None,
            });
            Err(error::nothing_at(request.request(), &request::allowed(&pattern, methods)))
        }
        _ => Err(Refusal::unauthorized()),
    }
}

fn bears(request: &ServiceRequest, token: &str) -> bool {
    let borne = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let borne = borne.and_then(bearer_token);
    // The time this takes tells nothing of the token but its length.
    borne.is_some_and(|borne| borne.as_bytes().ct_eq(token.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use asterism_actors::api::JobRequest;

    use super::*;
    use crate::api::{
        admin::{link_bench::LinkBench, running::RunningFile, self_test::SelfTest},
        http::body::intake::Intake,
    };
    use crate::{
        client::Client,
        cluster::{Cluster, file as cluster_file, sample::SAMPLE},
        error::Exit,
        processes::wiring::{self, runtime, standby::JournalTurn},
    };

    /// A supervisor without hosts behind a listener that wants the token `moon`.
    async fn start(folder: &Path) -> Server {
        let text = SAMPLE.replace("\"mtls\"", "\"insecure\"").replace(":7400", ":0").replace(":7401", ":0");
        let cluster = Cluster::resolve(&cluster_file::parse(&text, []).unwrap(), folder).unwrap();
        std::fs::create_dir_all(&cluster.data_dir).unwrap();
        let JournalTurn::Ours(journal) = wiring::journal(&cluster, None).unwrap() else { panic!("nobody shares it") };
        let models = wiring::supervisors_models(&cluster, &[]).unwrap();
        let (supervisor, listen, door) = wiring::start_supervisor(&cluster, (models, journal)).await.unwrap();
        let file = RunningFile::begin((&text, folder), &cluster, wiring::CONFIGURED).unwrap();
        let self_test = SelfTest::new(&file, &supervisor);
        let links = LinkBench::new(&supervisor, &file);
        let state = AdminState {
            intake: Intake::new(&supervisor),
            supervisor,
            self_test,
            links,
            cluster: cluster.name.clone(),
            place: crate::data_dir::place::Place::of(&cluster),
            data_dir: cluster.data_dir.clone(),
            door,
            listen,
            token: Some("moon".into()),
            joins: None,
            file,
            store: None,
            stop_wanted: Arc::default(),
        };
        serve(cluster.admin_listen, None, state).unwrap()
    }

    fn about(context: &str) -> JobRequest {
        JobRequest::new(Some(context.into()), "q".into())
    }

    #[test]
    fn a_token_is_borne_in_any_case() {
        for value in ["Bearer moon", "bearer moon", "BEARER   moon ", " Bearer moon"] {
            assert_eq!(bearer_token(value), Some("moon"), "{value:?}");
        }
        assert_eq!(["moon", "Basic moon", "Bearer", "Bearermoon"].map(bearer_token), [None; 4]);
    }

    #[test]
    fn refusals_end_in_the_documented_exits() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = runtime().unwrap();
        let server = runtime.block_on(start(folder.path()));
        let url = format!("http://{}", server.address);
        let client = |token: &str| Client::new(&url, Some(token.into()), Duration::from_secs(20)).unwrap();
        assert_eq!(client("sun").jobs(&[], 9).unwrap_err().exit, Exit::Authentication);
        let client = client("moon");
        assert!(!client.topology().unwrap().ready);
        assert!(client.jobs(&[], 9).unwrap().is_empty());
        assert_eq!(client.create_join_token("local", Duration::from_secs(60)).unwrap_err().exit, Exit::Usage);
        assert_eq!(client.job("job-9").unwrap_err().exit, Exit::NotFound);
        assert_eq!(client.cancel("job-9").unwrap_err().exit, Exit::NotFound);
        assert_eq!(client.events("job-9").err().unwrap().exit, Exit::NotFound);
        assert_eq!(client.submit(&about(" ")).unwrap_err().exit, Exit::Usage);
        let long = client.submit(&about(&"word ".repeat(20_000))).unwrap_err();
        assert_eq!(long.exit, Exit::Usage);
        assert!(long.message.contains("16384"), "{}", long.message);
        let star = serde_json::from_str(r#"{"star": {"block_tokens": 4}}"#).unwrap();
        let small = client.submit(&JobRequest { method: Some(star), ..about(&"word ".repeat(100)) }).unwrap_err();
        assert_eq!((small.exit, small.message.contains("4k")), (Exit::Usage, true));
        runtime.block_on(server.stop());
        assert_eq!(client.topology().unwrap_err().exit, Exit::Unreachable);
    }
}
