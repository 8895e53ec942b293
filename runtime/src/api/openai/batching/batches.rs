//! `/v1/batches`: many requests of one file, whose answers come as another. Does none of them itself.

use std::collections::HashSet;

use actix_web::{
    HttpRequest, get, post,
    web::{Data, Json, Path, Query, block},
};
use asterism_actors::{api::bounds, capacity::Holder};
use ring::digest;
use serde_json::{Value, json};

use super::{
    batch_run::{self, BatchLine, Lines, MOST_LINES},
    files,
    listing::{Page, PageQuery, listed},
};
use crate::api::{
    http::{
        body::{
            intake::{self, Intake, Taken},
            weight,
        },
        error::{Refusal, parser_words},
    },
    openai::{
        ApiState, Checked,
        answers::answer::unix_time,
        keys::owner,
        refusal,
        requests::fields::Fields,
        store::{BATCH_PREFIX, Batch, BatchState, Counts, drawn},
    },
};

/// What lines may ask.
pub const BATCH_ENDPOINTS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/responses"];
/// Entries of a list where nothing is said, and at most.
const BATCHES_LISTED: (usize, usize) = (20, 100);

#[post("/v1/batches")]
pub async fn create(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<Json<Value>> {
    let (mut fields, _share) = taken.into_parts();
    let missing = |name: &'static str| Refusal::invalid(name, format!("there is no {name}"));
    let input_file_id: String = fields.take("input_file_id")?.ok_or_else(|| missing("input_file_id"))?;
    let endpoint: String = fields.take("endpoint")?.ok_or_else(|| missing("endpoint"))?;
    fields.take::<String>("completion_window")?;
    let metadata = fields.metadata.take();
    fields.with_names(&["input_file_id", "endpoint", "completion_window"]).finish()?;
    if !BATCH_ENDPOINTS.contains(&endpoint.as_str()) {
        let got = bounds::shown(&endpoint);
        return Err(Refusal::invalid(
            "endpoint",
            format!("endpoint is '{got}', expected {}", BATCH_ENDPOINTS.join(", ")),
        ));
    }
    let owner = owner(&request);
    let file = files::find(&state, owner.as_ref(), &input_file_id)?;
    let mut batch = Batch {
        id: drawn(BATCH_PREFIX),
        owner,
        endpoint,
        input_file_id,
        metadata,
        status: BatchState::Open,
        total: 0,
        counts: Counts::default(),
        created_at: unix_time(),
        ended_at: None,
        output_file_id: None,
        error_file_id: None,
    };
    let (store, intake, holder) = (state.store.clone(), state.intake.clone(), intake::of(&request).1);
    let made = state.runtime.spawn(async move {
        let content = store.content(&file.id).map_err(|error| refusal::of_disk(&error))?;
        let lines = Lines::find(content, MOST_LINES + 1).map_err(|error| refusal::of_disk(&error))?;
        batch.total = check(&lines, &batch.endpoint, (&intake, &holder)).await?;
        store.begin_batch(&batch).map_err(files::not_kept)?;
        Ok::<_, Refusal>(batch)
    });
    let batch = made.await.map_err(|error| Refusal::failed("internal", error))??;
    batch_run::start(&state, batch.clone());
    Ok(Json(described(&state, &batch)))
}

/// How many requests a file has, each with an id of its own.
async fn check(lines: &Lines, endpoint: &str, (intake, holder): (&Intake, &Holder)) -> Checked<usize> {
    let mut seen = HashSet::new();
    for place in &lines.places {
        let refused =
            |what: String| Refusal::invalid("input_file_id", format!("line {} of the file {what}", place.line + 1));
        if seen.len() == MOST_LINES {
            return Err(refused(format!("is one too many, expected at most {MOST_LINES}")));
        }
        if place.bytes > intake.most() {
            return Err(refused(format!("has {} bytes, expected at most {}", place.bytes, intake.most())));
        }
        let mut share = intake.room(holder, weight::unread(place.bytes)).await?;
        let line = lines.read(*place).map_err(|error| refusal::of_disk(&error))?;
        let structure = intake.structure(&line).map_err(|refusal| refused(format!("is refused: {refusal}")))?;
        share.merge(intake.room(holder, structure).await?);
        let line: BatchLine = serde_json::from_slice(&line)
            .map_err(|error| refused(format!("is no request: {}", parser_words(&error))))?;
        if line.method != "POST" || line.url != endpoint {
            return Err(refused(format!("asks for another endpoint, expected POST {endpoint}")));
        }
        let id = digest::digest(&digest::SHA256, line.custom_id.as_bytes());
        if !seen.insert(<[u8; 16]>::try_from(&id.as_ref()[..16]).expect("a digest is longer")) {
            return Err(refused("has the custom_id of a line above".to_owned()));
        }
    }
    match seen.len() {
        0 => Err(Refusal::invalid("input_file_id", "the file has no line, expected a request on each")),
        total => Ok(total),
    }
}

#[get("/v1/batches")]
pub async fn list(state: Data<ApiState>, request: HttpRequest, listing: Query<PageQuery>) -> Checked<Json<Value>> {
    let page = state.store.batches(owner(&request).as_ref(), |ids| {
        listing.page(&mut ids.map(|id| (id, id.to_owned())), BATCHES_LISTED)
    })?;
    let store = state.store.clone();
    let read = move || page.entries.iter().filter_map(|id| store.batch(id)).collect::<Vec<_>>();
    let (has_more, batches) = (page.has_more, block(read).await.map_err(|error| Refusal::failed("internal", error))?);
    let entries = batches.iter().map(|batch| described(&state, batch)).collect();
    Ok(Json(listed(Page { entries, has_more })))
}

#[get("/v1/batches/{id}")]
pub async fn show(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<Json<Value>> {
    Ok(Json(described(&state, &find(&state, &request, &id)?)))
}

#[post("/v1/batches/{id}/cancel")]
pub async fn cancel(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<Json<Value>> {
    let mut batch = find(&state, &request, &id)?;
    if batch.status == BatchState::Open {
        batch.status = BatchState::Cancelling;
        state.store.put_batch(&batch).map_err(|error| refusal::of_disk(&error))?;
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
    let at = |status: BatchState| (batch.status == status).then_some(batch.ended_at).flatten();
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
        "completed_at": at(BatchState::Completed),
        "cancelled_at": at(BatchState::Cancelled),
        "request_counts": { "total": batch.total, "completed": good, "failed": bad },
        "metadata": batch.metadata,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What checking a file of this text says, where lines have at most 4 KiB.
    fn checked(text: &str) -> Checked<usize> {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let (lines, intake) = (Lines::find(file, MOST_LINES + 1).unwrap(), Intake::of_bytes(4 << 10));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(check(&lines, BATCH_ENDPOINTS[0], (&intake, &None)))
    }

    #[test]
    fn a_file_is_requests_of_one_endpoint_each_with_its_own_id() {
        let line = |id: &str, url: &str| {
            format!("{{\"custom_id\": \"{id}\", \"method\": \"POST\", \"url\": \"{url}\", \"body\": {{}}}}\n")
        };
        let chat = BATCH_ENDPOINTS[0];
        let good = line("a", chat) + "\n" + &line("b", chat);
        assert_eq!(checked(&good).unwrap(), 2);
        for (text, cause) in [
            (String::new(), "no line"),
            (line("a", chat) + &line("a", chat), "line 2 of the file has the custom_id"),
            (line("a", BATCH_ENDPOINTS[1]), "line 1 of the file asks for another endpoint"),
            ("{}".to_owned(), "line 1 of the file is no request"),
            ("\n\nmoon".to_owned(), "line 3 of the file is no request"),
            (line(&"x".repeat(513), chat), "line 1 of the file is no request: custom_id has more than 512"),
            (line(&"x".repeat(5 << 10), chat), "expected at most 4096"),
            ("{}\n".repeat(MOST_LINES + 1), "line 1 of the file is no request"),
        ] {
            let error = checked(&text).unwrap_err().to_string();
            assert!(error.contains(cause), "{text:.200}: {error}");
        }
    }
}
