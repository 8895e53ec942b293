//! `/api/v1/join-tokens`: tokens for nodes that have no certificates yet. Hands out no certificate itself.

use std::time::Duration;

use actix_web::{
    HttpRequest, Responder, post,
    web::{Data, Json},
};

use crate::api::{
    admin::{
        AdminState,
        bodies::{Joining, Token},
    },
    http::{body::intake::Body, error::Refusal},
};

/// The longest that a token lives.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

#[post("/join-tokens")]
pub async fn create_token(
    state: Data<AdminState>,
    body: Body<Joining>,
    request: HttpRequest,
) -> Result<impl Responder, Refusal> {
    // A token lets its bearer be a host, so that without a token of its own this API gives none to other machines.
    let from_here = request.peer_addr().is_some_and(|peer| peer.ip().is_loopback());
    if state.token.is_none() && !from_here {
        return Err(Refusal::unauthorized());
    }
    let joins = state.joins.clone().ok_or_else(Refusal::joining_closed)?;
    let node = body.0.node.clone();
    let cluster = state.file.cluster();
    let new_node = cluster.node_place(&node).is_none();
    if new_node {
        cluster.check_new_node(&node).map_err(|error| Refusal::invalid("node", error))?;
    }
    let asked = Duration::try_from_secs_f64(body.0.ttl_s).ok();
    let lifetime = asked.filter(|lifetime| !lifetime.is_zero() && *lifetime <= LONGEST);
    let lifetime = lifetime.ok_or_else(|| {
        Refusal::invalid(
            "ttl_s",
            format!("ttl_s is {}, expected more than 0 and at most {}", body.0.ttl_s, LONGEST.as_secs()),
        )
    })?;
    let join = joins.local_address().to_string();
    let created = actix_web::web::block(move || joins.create_token(Some(&node), lifetime)).await;
    let token = created.map_err(|error| Refusal::failed("join_store", error))?;
    let token = token.map_err(|error| Refusal::failed(error.code(), &error))?.reveal();
    Ok(Json(Token { token, join, supervisor: state.listen.to_string(), expires_s: lifetime.as_secs_f64(), new_node }))
}
