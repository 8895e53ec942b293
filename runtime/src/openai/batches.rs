//! `/v1/batches`: many requests of one file, whose answers come as another. Does none of them itself.

use actix_web::{
    HttpRequest, get, post,
    web::{Data, Json, Path, Query, block},
};
use asterism_actors::api::bounds;
use serde_json::{Value, json};

use super::{
    ApiState, Checked,
    answer::unix_time,
    batch_run::{self, Line},
    fields::Fields,
    files::{self, Listing},
    keys::owner,
    refusal,
    store::{BATCH, Batch, Counts, Course, drawn},
};
use crate::http::{error::Refusal, intake::Taken};

/// What lines may ask.
pub const ENDPOINTS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/responses"];
/// Most lines of a batch, most batches that have not ended, and most that are kept: the oldest that have ended go first.
const MOST_LINES: usize = 50_000;
const MOST_OPEN: usize = 64;
const MOST_KEPT: usize = 1000;

#[post("/v1/batches")]
pub async fn create(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<Json<Value>> {
    let (mut fields, _share) = taken.into_parts();
    let missing = |name: &'static str| Refusal::invalid(name, format!("there is no {name}"));
    let input_file_id: String = fields.take("input_file_id")?.ok_or_else(|| missing("input_file_id"))?;
    let endpoint: String = fields.take("endpoint")?.ok_or_else(|| missing("endpoint"))?;
    fields.take::<String>("completion_window")?;
    let metadata = fields.metadata.take();
    fields.finish()?;
    if !ENDPOINTS.contains(&endpoint.as_str()) {
        let got = bounds::shown(&endpoint);
        return Err(Refusal::invalid("endpoint", format!("endpoint is '{got}', expected {}", ENDPOINTS.join(", "))));
    }
    let owner = owner(&request);
    let file = files::find(&state, owner.as_ref(), &input_file_id)?;
    let (store, wanted) = (state.store.clone(), endpoint.clone());
    let lines = block(move || {
        let content = store.content(&file.id).map_err(|error| files::of_disk(&error))?;
        let (open, ended): (Vec<_>, Vec<_>) = store.batches().into_iter().partition(Batch::is_open);
        if open.len() >= MOST_OPEN {
            return Err(asterism_actors::JobError::Overloaded { waiting: open.len() }.into());
        }
        let total = check(&content, &wanted)?;
        let surplus = (open.len() + ended.len() + 1).saturating_sub(MOST_KEPT);
        let forgotten = ended.iter().take(surplus).try_for_each(|batch| store.remove_batch(&batch.id));
        forgotten.map_err(|error| files::of_disk(&error)).map(|()| total)
    });
    let total = lines.await.map_err(|error| Refusal::failed("internal", error))??;
    let batch = Batch {
        id: drawn(BATCH),
        owner,
        endpoint,
        input_file_id,
        metadata,
        status: Course::Open,
        total,
        counts: Counts::default(),
        created_at: unix_time(),
        ended_at: None,
        output_file_id: None,
        error_file_id: None,
    };
    state.store.begin_batch(&batch).map_err(|error| files::of_disk(&error))?;
    batch_run::start(&state, batch.clone());
    Ok(Json(described(&state, &batch)))
}

/// How many requests a file has, each with an id of its own.
fn check(content: &[u8], endpoint: &str) -> Checked<usize> {
    let mut seen = std::collections::HashSet::new();
    for (at, line) in batch_run::lines(content) {
        let refused = |what: String| Refusal::invalid("input_file_id", format!("line {} of the file {what}", at + 1));
        let line: Line = serde_json::from_slice(line).map_err(|error| {
            let cause: String = error.to_string().chars().take(200).flat_map(char::escape_debug).collect();
            refused(format!("is no request: {cause}"))
        })?;
        if line.method != "POST" || line.url != endpoint {
            return Err(refused(format!("asks for another endpoint, expected POST {endpoint}")));
        }
        if !seen.insert(line.custom_id) {
            return Err(refused("has the custom_id of a line above".to_owned()));
        }
        if seen.len() > MOST_LINES {
            return Err(refused(format!("is one too many, expected at most {MOST_LINES}")));
        }
    }
    match seen.len() {
        0 => Err(Refusal::invalid("input_file_id", "the file has no line, expected a request on each")),
        total => Ok(total),
    }
}

#[get("/v1/batches")]
pub async fn list(state: Data<ApiState>, request: HttpRequest, listing: Query<Listing>) -> Checked<Json<Value>> {
    let (store, owner) = (state.store.clone(), owner(&request));
    let batches = block(move || store.batches()).await.map_err(|error| Refusal::failed("internal", error))?;
    let own = batches.iter().filter(|batch| batch.owner == owner);
    Ok(Json(listing.cut(own.map(|batch| described(&state, batch)).collect())))
}

#[get("/v1/batches/{id}")]
pub async fn show(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<Json<Value>> {
    Ok(Json(described(&state, &find(&state, &request, &id)?)))
}

#[post("/v1/batches/{id}/cancel")]
pub async fn cancel(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<Json<Value>> {
    let mut batch = find(&state, &request, &id)?;
    if batch.status == Course::Open {
        batch.status = Course::Cancelling;
        state.store.put_batch(&batch).map_err(|error| files::of_disk(&error))?;
        state.open.cancel(&batch.id);
    }
    Ok(Json(described(&state, &batch)))
}

fn find(state: &ApiState, request: &HttpRequest, id: &str) -> Checked<Batch> {
    let batch = state.store.batch(id).filter(|batch| batch.owner == owner(request));
    batch.ok_or_else(|| refusal::not_found("batch", id))
}

/// A batch as clients see it.
fn described(state: &ApiState, batch: &Batch) -> Value {
    let Counts { good, bad } = state.open.counts(&batch.id).unwrap_or(batch.counts);
    let at = |status: Course| (batch.status == status).then_some(batch.ended_at).flatten();
    json!({
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": null,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "in_progress_at": batch.created_at,
        "completed_at": at(Course::Completed),
        "cancelled_at": at(Course::Cancelled),
        "request_counts": { "total": batch.total, "completed": good, "failed": bad },
        "metadata": batch.metadata,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_requests_of_one_endpoint_each_with_its_own_id() {
        let line = |id: &str, url: &str| {
            format!("{{\"custom_id\": \"{id}\", \"method\": \"POST\", \"url\": \"{url}\", \"body\": {{}}}}\n")
        };
        let chat = ENDPOINTS[0];
        let good = line("a", chat) + "\n" + &line("b", chat);
        assert_eq!(check(good.as_bytes(), chat).unwrap(), 2);
        for (text, cause) in [
            (String::new(), "no line"),
            (line("a", chat) + &line("a", chat), "line 2 of the file has the custom_id"),
            (line("a", ENDPOINTS[1]), "line 1 of the file asks for another endpoint"),
            ("{}".to_owned(), "line 1 of the file is no request"),
            ("\n\nmoon".to_owned(), "line 3 of the file is no request"),
        ] {
            let error = check(text.as_bytes(), chat).unwrap_err().to_string();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
