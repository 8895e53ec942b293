//! `/v1/files`: what batches are read from and written to. A key sees its own files alone.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use actix_multipart::Multipart;
use actix_web::{
    HttpRequest, HttpResponse,
    body::SizedStream,
    delete, get,
    http::StatusCode,
    post,
    web::{Data, Json, Path, Query, block},
};
use asterism_actors::{
    api::bounds,
    room::{Holder, Share},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    ApiState, Checked,
    answer::unix_time,
    keys::owner,
    listing::{Listing, listed},
    refusal,
    store::{FILE, Full, Kept, NotKept, drawn},
};
use crate::http::{
    error::{self, Refusal},
    intake::{self, Intake},
    pace, weight,
};

/// Largest file.
const MOST_BYTES: usize = 32 << 20;
/// Bytes of a file that are read together.
const PIECE: usize = 64 << 10;
/// Bytes of a field that is no file.
const FIELD_BYTES: usize = 256;
/// Entries of a list where nothing is said, and at most.
const LISTED: (usize, usize) = (10_000, 10_000);

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
        store.put_file(&made, &content).map_err(not_kept)
    });
    put.await.map_err(|error| Refusal::failed("internal", error))??;
    Ok(Json(described(&kept)))
}

#[get("/v1/files")]
pub async fn list(state: Data<ApiState>, request: HttpRequest, listing: Query<Listing>) -> Checked<Json<Value>> {
    let page = state.store.files(owner(&request).as_ref(), |files| {
        let wanted = |file: &&Kept| listing.purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose);
        listing.page(&mut files.filter(wanted).map(|file| (file.id.as_str(), described(file))), LISTED)
    })?;
    Ok(Json(listed(page)))
}

#[get("/v1/files/{id}")]
pub async fn show(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<Json<Value>> {
    Ok(Json(described(&find(&state, owner(&request).as_ref(), &id)?)))
}

#[get("/v1/files/{id}/content")]
pub async fn download(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<HttpResponse> {
    let kept = find(&state, owner(&request).as_ref(), &id)?;
    let content = state.store.content(&kept.id).map_err(|error| of_disk(&error))?;
    let length = content.metadata().map_err(|error| of_disk(&error))?.len();
    let pieces = stream::unfold((Arc::new(content), 0), move |(content, at)| piece(content, (at, length)));
    Ok(HttpResponse::Ok().content_type("application/jsonl").body(SizedStream::new(length, pieces)))
}

/// The piece of a file that begins at `at`, and what comes behind it. Who reads slowly has no more of it in memory.
async fn piece(content: Arc<File>, (at, length): (u64, u64)) -> Option<(io::Result<Bytes>, (Arc<File>, u64))> {
    if at >= length {
        return None;
    }
    let (file, bytes) = (content.clone(), (length - at).min(PIECE as u64));
    let read = move || {
        let mut piece = vec![0; bytes as usize];
        file.read_exact_at(&mut piece, at).map(|()| Bytes::from(piece))
    };
    match block(read).await.map_err(io::Error::other).flatten() {
        Ok(piece) => Some((Ok(piece), (content, at + bytes))),
        Err(error) => Some((Err(error), (content, length))),
    }
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

/// What is not kept.
pub fn not_kept(cause: NotKept) -> Refusal {
    match cause {
        NotKept::Disk(error) => of_disk(&error),
        NotKept::Full(cause) => full(&cause),
    }
}

/// More than may be kept.
pub fn full(cause: &Full) -> Refusal {
    let (status, code) = match cause.may_pass() {
        true => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
        false => (StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
    };
    Refusal::of(status, code, cause)
}

/// Purpose, name and content of a form, with their share of the room that bodies have.
pub(super) async fn read(
    (intake, holder): (&Intake, &Holder),
    mut form: Multipart,
) -> Checked<(String, String, Vec<u8>, Share)> {
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
