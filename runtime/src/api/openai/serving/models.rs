//! `/v1/models`: those that the cluster has.

use actix_web::{
    Responder, get,
    web::{Data, Json, Path},
};
use asterism_actors::supervisor::ModelFront;
use serde_json::{Value, json};

use crate::api::openai::{ApiState, Checked};

#[get("/v1/models")]
pub async fn list(state: Data<ApiState>) -> impl Responder {
    let models: Vec<Value> = state.supervisor.models().iter().map(|model| described(&state, model)).collect();
    Json(json!({ "object": "list", "data": models }))
}

#[get("/v1/models/{model}")]
pub async fn show(state: Data<ApiState>, model: Path<String>) -> Checked<impl Responder> {
    shown(&state, &model)
}

/// A model of the hub's, by its whole name.
#[get("/v1/models/{organisation}/{model}")]
pub async fn show_of(state: Data<ApiState>, name: Path<(String, String)>) -> Checked<impl Responder> {
    let (organisation, model) = name.into_inner();
    shown(&state, &format!("{organisation}/{model}"))
}

fn shown(state: &ApiState, model: &str) -> Checked<Json<Value>> {
    let model = state.model_named(Some(model))?;
    Ok(Json(described(state, &model)))
}

fn described(state: &ApiState, model: &ModelFront) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": state.since,
        "owned_by": state.cluster,
        "max_model_len": model.max_tokens,
        "context_length": model.max_tokens,
    })
}
