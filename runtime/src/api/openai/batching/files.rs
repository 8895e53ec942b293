//! `/v1/files`: what batches are read from and written to. A key sees its own files alone.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use actix_multipart::{Field, Multipart};
use actix_web::{
    HttpRequest, HttpResponse,
    body::SizedStream,
    delete, get,
    http::StatusCode,
    post,
    web::{Data, Json, Path, Query, block},
};
use asterism_actors::api::bounds;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::listing::{PageQuery, listed};
use crate::api::{
    http::{
        error::{self, Refusal},
        pace,
    },
    openai::{
        ApiState, Checked,
        answers::answer::unix_time,
        keys::owner,
        refusal,
        store::{FILE_PREFIX, StorageFull, Store, StoreRefusal, StoredFile, Upload, drawn},
    },
};

/// Largest file.
const UPLOAD_BYTES: usize = 32 << 20;
/// Bytes of a file that are read together.
const PIECE: usize = 64 << 10;
/// Bytes of a field that is no file.
const FORM_FIELD_BYTES: usize = 256;
/// Entries of a list where nothing is said, and at most.
const FILES_LISTED: (usize, usize) = (10_000, 10_000);

#[post("/v1/files")]
pub async fn create(state: Data<ApiState>, request: HttpRequest, form: Multipart) -> Checked<Json<Value>> {
    let owner = owner(&request);
    let (purpose, filename, upload) = read((&state.store, owner.as_ref()), form).await?;
    if purpose != "batch" {
        return Err(Refusal::invalid("purpose", format!("purpose is '{}', expected batch", bounds::shown(&purpose))));
    }
    let (bytes, created_at) = (upload.bytes(), unix_time());
    let kept = StoredFile { id: drawn(FILE_PREFIX), owner, filename, purpose, bytes, created_at };
    let made = kept.clone();
    let put = block(move || upload.keep(&made).map_err(not_kept));
    put.await.map_err(|error| Refusal::failed("internal", error))??;
    Ok(Json(described(&kept)))
}

#[get("/v1/files")]
pub async fn list(state: Data<ApiState>, request: HttpRequest, listing: Query<PageQuery>) -> Checked<Json<Value>> {
    let page = state.store.files(owner(&request).as_ref(), |files| {
        let wanted = |file: &&StoredFile| listing.purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose);
        listing.page(&mut files.filter(wanted).map(|file| (file.id.as_str(), described(file))), FILES_LISTED)
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
    let content = state.store.content(&kept.id).map_err(|error| refusal::of_disk(&error))?;
    let length = content.metadata().map_err(|error| refusal::of_disk(&error))?.len();
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
    state.store.remove_file(&kept.id).map_err(|error| refusal::of_disk(&error))?;
    Ok(Json(json!({ "id": kept.id, "object": "file", "deleted": true })))
}

/// A file of whoever asks; another's is not there.
pub fn find(state: &ApiState, owner: Option<&String>, id: &str) -> Checked<StoredFile> {
    let kept = state.store.file(id).filter(|kept| kept.owner.as_ref() == owner);
    kept.ok_or_else(|| refusal::not_found("file", id))
}

/// A file as clients see it.
pub fn described(kept: &StoredFile) -> Value {
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

/// What is not kept.
pub fn not_kept(cause: StoreRefusal) -> Refusal {
    match cause {
        StoreRefusal::Disk(error) => refusal::of_disk(&error),
        StoreRefusal::Full(cause) => full(&cause),
    }
}

/// More than may be kept.
pub fn full(cause: &StorageFull) -> Refusal {
    let (status, code) = match cause.may_pass() {
        true => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
        false => (StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
    };
    Refusal::of(status, code, cause)
}

/// Purpose and name of a form's file, and the file, on the disk as it came.
pub(crate) async fn read(
    (store, owner): (&Arc<Store>, Option<&String>),
    mut form: Multipart,
) -> Checked<(String, String, Upload)> {
    let (mut purpose, mut file) = (None, None);
    while let Some(field) = form.next().await {
        let mut field = field.map_err(broken)?;
        let name = field.name().unwrap_or_default().to_owned();
        let filename = field.content_disposition().and_then(|about| about.get_filename()).map(bounds::shown);
        match name.as_str() {
            "purpose" => {
                let mut text = Vec::new();
                while let Some(chunk) = next(&mut field, (text.len(), FORM_FIELD_BYTES)).await? {
                    text.extend_from_slice(&chunk);
                }
                purpose = Some(String::from_utf8_lossy(&text).into_owned());
            }
            "file" => {
                let mut upload = Upload::begin(store, owner.cloned()).map_err(not_kept)?;
                while let Some(chunk) = next(&mut field, (upload.bytes(), UPLOAD_BYTES)).await? {
                    upload.write(&chunk).map_err(not_kept)?;
                }
                file = Some((filename.unwrap_or_else(|| "file".into()), upload));
            }
            other => return Err(refusal::unknown(other, ["purpose", "file"])),
        }
    }
    let purpose = purpose.ok_or_else(|| Refusal::invalid("purpose", "there is no purpose, expected batch"))?;
    let (filename, upload) = file.ok_or_else(|| Refusal::invalid("file", "there is no file"))?;
    Ok((purpose, filename, upload))
}

/// More of a field of which some bytes came.
async fn next(field: &mut Field, (had, most): (usize, usize)) -> Checked<Option<Bytes>> {
    let chunk = field.next().await.transpose().map_err(broken)?;
    match chunk {
        Some(chunk) if had + chunk.len() > most => {
            let name = bounds::shown(field.name().unwrap_or_default());
            let message = format!("the field {name} has more than {most} bytes");
            Err(Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message))
        }
        chunk => Ok(chunk),
    }
}

fn broken(error: actix_multipart::MultipartError) -> Refusal {
    match &error {
        actix_multipart::MultipartError::Payload(cause) if pace::was_cut(cause) => error::too_slow(),
        _ => Refusal::invalid(None, format!("the body is no form with a file: {}", error::parser_words(&error))),
    }
}
