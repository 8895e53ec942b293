//! `/v1/files`: what batches are read from and written to. A key sees its own files alone.

use std::io;

use actix_multipart::Multipart;
use actix_web::{
    HttpRequest, HttpResponse, delete, get,
    http::StatusCode,
    post,
    web::{Data, Json, Path, Query, block},
};
use asterism_actors::{
    api::bounds,
    room::{Holder, Share},
};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ApiState, Checked,
    answer::unix_time,
    keys::owner,
    refusal,
    store::{FILE, Kept, drawn},
};
use crate::http::{
    error::{self, Refusal},
    intake::{self, Intake},
    pace, weight,
};

/// Largest file, most files, and bytes of all of them.
const MOST_BYTES: usize = 32 << 20;
const MOST_FILES: usize = 10_000;
const MOST_IN_ALL: usize = 1 << 30;
/// Bytes of a field that is no file.
const FIELD_BYTES: usize = 256;
/// Most entries of one list.
const LISTED: usize = 10_000;

#[post("/v1/files")]
pub async fn create(state: Data<ApiState>, request: HttpRequest, form: Multipart) -> Checked<Json<Value>> {
    let (intake, holder) = intake::of(&request);
    let (purpose, filename, content, share) = read((&intake, &holder), form).await?;
    if purpose != "batch" {
        return Err(Refusal::invalid("purpose", format!("purpose is '{}', expected batch", bounds::shown(&purpose))));
    }
    let kept = Kept {
        id: drawn(FILE),
        owner: owner(&request),
        filename,
        purpose,
        bytes: content.len(),
        created_at: unix_time(),
    };
    let (store, made) = (state.store.clone(), kept.clone());
    let put = block(move || {
        let _share = share;
        let files = store.files();
        let held: usize = files.iter().map(|file| file.bytes).sum();
        if files.len() >= MOST_FILES || held + content.len() > MOST_IN_ALL {
            return Err(full(files.len(), held));
        }
        store.put_file(&made, &content).map_err(|error| of_disk(&error))
    });
    put.await.map_err(|error| Refusal::failed("internal", error))??;
    Ok(Json(described(&kept)))
}

/// Behind the `?` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listing {
    pub after: Option<String>,
    pub limit: Option<usize>,
    pub order: Option<String>,
    pub purpose: Option<String>,
}

impl Listing {
    /// The entries asked for, of those in order, as clients read them.
    pub fn cut(&self, mut entries: Vec<Value>) -> Value {
        if self.order.as_deref() != Some("asc") {
            entries.reverse();
        }
        if let Some(at) =
            entries.iter().position(|entry| self.after.as_ref().is_some_and(|after| entry["id"] == **after))
        {
            entries.drain(..=at);
        }
        let more = entries.len() > self.limit.unwrap_or(LISTED);
        entries.truncate(self.limit.unwrap_or(LISTED));
        let id = |entry: Option<&Value>| entry.map(|entry| entry["id"].clone());
        json!({ "object": "list", "first_id": id(entries.first()), "last_id": id(entries.last()), "has_more": more, "data": entries })
    }
}

#[get("/v1/files")]
pub async fn list(state: Data<ApiState>, request: HttpRequest, listing: Query<Listing>) -> Checked<Json<Value>> {
    let (store, owner) = (state.store.clone(), owner(&request));
    let files = block(move || store.files()).await.map_err(|error| Refusal::failed("internal", error))?;
    let wanted =
        |file: &&Kept| file.owner == owner && listing.purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose);
    Ok(Json(listing.cut(files.iter().filter(wanted).map(described).collect())))
}

#[get("/v1/files/{id}")]
pub async fn show(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<Json<Value>> {
    Ok(Json(described(&find(&state, owner(&request).as_ref(), &id)?)))
}

#[get("/v1/files/{id}/content")]
pub async fn download(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<HttpResponse> {
    let kept = find(&state, owner(&request).as_ref(), &id)?;
    let store = state.store.clone();
    let content = block(move || store.content(&kept.id)).await.map_err(|error| Refusal::failed("internal", error))?;
    let content = content.map_err(|error| of_disk(&error))?;
    Ok(HttpResponse::Ok().content_type("application/jsonl").body(content))
}

#[delete("/v1/files/{id}")]
pub async fn delete(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<Json<Value>> {
    let kept = find(&state, owner(&request).as_ref(), &id)?;
    state.store.remove_file(&kept.id).map_err(|error| of_disk(&error))?;
    Ok(Json(json!({ "id": kept.id, "object": "file", "deleted": true })))
}

/// A file of whoever asks; another's is not there.
pub fn find(state: &ApiState, owner: Option<&String>, id: &str) -> Checked<Kept> {
    let kept = state.store.file(id).filter(|kept| kept.owner.as_ref() == owner);
    kept.ok_or_else(|| refusal::not_found("file", id))
}

/// A file as clients see it.
pub fn described(kept: &Kept) -> Value {
    json!({
        "id": kept.id,
        "object": "file",
        "bytes": kept.bytes,
        "created_at": kept.created_at,
        "filename": kept.filename,
        "purpose": kept.purpose,
        "status": "processed",
    })
}

/// A disk that takes or gives nothing.
pub fn of_disk(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound => refusal::not_found("file", "of this id"),
        _ => {
            let message = format!("the disk of data_dir does not do what is wanted: {error}");
            Refusal::of(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message)
        }
    }
}

fn full(files: usize, held: usize) -> Refusal {
    let message = format!(
        "there are {files} files of {held} bytes already, expected at most {MOST_FILES} of {MOST_IN_ALL}; delete some"
    );
    Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, "capacity_exhausted", message)
}

/// Purpose, name and content of a form, with their share of the room that bodies have.
async fn read((intake, holder): (&Intake, &Holder), mut form: Multipart) -> Checked<(String, String, Vec<u8>, Share)> {
    let (mut purpose, mut file, mut share) = (None, None, intake.room(holder, 0).await?);
    while let Some(field) = form.next().await {
        let mut field = field.map_err(broken)?;
        let name = field.name().unwrap_or_default().to_owned();
        let filename = field.content_disposition().and_then(|about| about.get_filename()).map(bounds::shown);
        let most = if name == "file" { MOST_BYTES } else { FIELD_BYTES };
        let mut content = Vec::new();
        while let Some(chunk) = field.next().await {
            let chunk = chunk.map_err(broken)?;
            if content.len() + chunk.len() > most {
                let message = format!("the field {} has more than {most} bytes", bounds::shown(&name));
                return Err(Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message));
            }
            share.merge(intake.room(holder, weight::unread(chunk.len())).await?);
            content.extend_from_slice(&chunk);
        }
        match name.as_str() {
            "purpose" => purpose = Some(String::from_utf8_lossy(&content).into_owned()),
            "file" => file = Some((filename.unwrap_or_else(|| "file".into()), content)),
            other => return Err(refusal::unknown(other)),
        }
    }
    let purpose = purpose.ok_or_else(|| Refusal::invalid("purpose", "there is no purpose, expected batch"))?;
    let (filename, content) = file.ok_or_else(|| Refusal::invalid("file", "there is no file"))?;
    Ok((purpose, filename, content, share))
}

fn broken(error: actix_multipart::MultipartError) -> Refusal {
    match &error {
        actix_multipart::MultipartError::Payload(cause) if pace::was_cut(cause) => error::too_slow(),
        _ => {
            let cause: String = error.to_string().chars().take(200).flat_map(char::escape_debug).collect();
            Refusal::invalid(None, format!("the body is no form with a file: {cause}"))
        }
    }
}
