//! API keys: a file with a name and the SHA-256 of a key on each line, and how many requests each may have open. Makes no keys.

use std::{fs, path::Path, sync::Arc};

use actix_web::{
    HttpMessage, HttpRequest,
    http::{
        StatusCode,
        header::{AUTHORIZATION, HeaderMap, HeaderName},
    },
};
use asterism_actors::api::bounds;
use ring::digest;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::{
    api::http::{error::Refusal, pace::ResponseGuard, request::bearer_token},
    error::CliError,
};

/// Where Anthropic's clients put their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Most keys of one file.
const MOST_KEYS: usize = 10_000;
/// Bytes of a file with so many.
const MOST_KEY_FILE_BYTES: u64 = 2 << 20;
/// Requests that a key may have open where its line says nothing.
const OPEN_REQUESTS: usize = 256;

/// Everybody who may ask.
#[derive(Clone)]
pub struct ApiKeys(Arc<[ApiKey]>);

struct ApiKey {
    name: Arc<str>,
    hash: [u8; digest::SHA256_OUTPUT_LEN],
    room: Arc<Semaphore>,
    most: usize,
}

/// Whose request it is; held until its answer has been read, or what it asked for in the background has ended.
#[derive(Clone)]
pub struct Bearer {
    /// The key's name.
    pub name: Arc<str>,
    /// Its place among that key's requests.
    pub place: ResponseGuard,
}

impl ApiKeys {
    /// Reads a key file: `NAME SHA256 [REQUESTS]` on each line, `#` before what is said to people.
    pub fn read(path: &Path) -> Result<Self, CliError> {
        let failed = |what: String| CliError::usage(format!("the key file {} {what}", path.display()));
        let metadata = fs::metadata(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
        if metadata.len() > MOST_KEY_FILE_BYTES {
            return Err(failed(format!("has {} bytes, expected at most {MOST_KEY_FILE_BYTES}", metadata.len())));
        }
        let text = fs::read_to_string(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
        let keys = Self::parse(&text).map_err(failed)?;
        Ok(keys)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.split('#').next().unwrap_or("").trim()));
        let mut keys: Vec<ApiKey> = Vec::new();
        for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let wrong = |what: &str| format!("has on line {at} {what}, expected NAME SHA256 [REQUESTS]");
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, hash, most) = match words[..] {
                [name, hash] => (name, hash, OPEN_REQUESTS),
                [name, hash, most] => {
                    let most = most.parse().ok().filter(|most| (1..=100_000).contains(most));
                    (name, hash, most.ok_or_else(|| wrong("a number of requests that is not 1 to 100000"))?)
                }
                _ => return Err(wrong("something else")),
            };
            let name = bounds::name("name", name).map_err(|_| wrong("a name that is not plain"))?;
            let hash = unhex(hash).ok_or_else(|| wrong("a hash that is not 64 hexadecimal digits"))?;
            if keys.iter().any(|key| *key.name == *name || key.hash == hash) {
                return Err(wrong("a name or key that stands above already"));
            }
            keys.push(ApiKey { name: name.into(), hash, room: Arc::new(Semaphore::new(most)), most });
        }
        match keys.len() {
            0 => Err("names no key, so that nobody could ask; take api_key_file out where everybody may".into()),
            1..=MOST_KEYS => Ok(Self(keys.into())),
            got => Err(format!("names {got} keys, expected at most {MOST_KEYS}")),
        }
    }

    /// Whose key a request bears, with a place among that key's requests.
    pub fn admit(&self, headers: &HeaderMap) -> Result<Bearer, Refusal> {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        // Anthropic's clients bear it alone.
        let borne = text(&AUTHORIZATION).and_then(bearer_token).or_else(|| text(&API_KEY));
        let hash = digest::digest(&digest::SHA256, borne.unwrap_or_default().trim().as_bytes());
        // All are compared, so that the time this takes tells nothing of which it is.
        let found = self.0.iter().fold(None, |found, key| match bool::from(key.hash.ct_eq(hash.as_ref())) {
            true => Some(key),
            false => found,
        });
        let key = found.ok_or_else(|| {
            let message = "this API wants a key: send `Authorization: Bearer KEY`";
            Refusal::of(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
        })?;
        let place = key.room.clone().try_acquire_owned().map_err(|_| {
            let message = format!(
                "key '{}' has {} requests open already, which is its most: answers that are still read and responses in the \
                 background count",
                key.name, key.most
            );
            Refusal::of(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
        })?;
        Ok(Bearer { name: key.name.clone(), place: ResponseGuard::holding(place) })
    }

    /// A place among a key's requests for what goes on from before, if there is one.
    pub fn place(&self, name: &str) -> Option<ResponseGuard> {
        let key = self.0.iter().find(|key| *key.name == *name)?;
        key.room.clone().try_acquire_owned().ok().map(ResponseGuard::holding)
    }
}

/// The name of the key that a request bears, where there are keys.
pub fn owner(request: &HttpRequest) -> Option<String> {
    request.extensions().get::<Bearer>().map(|bearer| bearer.name.to_string())
}

fn unhex(text: &str) -> Option<[u8; digest::SHA256_OUTPUT_LEN]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = text.as_bytes();
    let mut hash = [0; digest::SHA256_OUTPUT_LEN];
    if bytes.len() != 2 * hash.len() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(bytes.chunks(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    /// `printf moon | sha256sum`
    const MOON: &str = "9e78b43ea00edcac8299e0cc8df7f6f913078171335f733a21d5d911b6999132";

    fn bearing(key: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}")).unwrap());
        headers
    }

    #[test]
    fn a_key_is_known_by_its_hash_and_has_so_many_requests() {
        let keys = ApiKeys::parse(&format!("# people\nalice {MOON} 1 # laptop\n\n")).unwrap();
        assert_eq!(keys.admit(&bearing("sun")).err().unwrap().code(), "invalid_api_key");
        assert_eq!(keys.admit(&bearing(MOON)).err().unwrap().code(), "invalid_api_key");
        assert_eq!(keys.admit(&HeaderMap::new()).err().unwrap().code(), "invalid_api_key");
        let first = keys.admit(&bearing("moon")).unwrap();
        assert_eq!(keys.admit(&bearing("moon")).err().unwrap().code(), "rate_limit_exceeded");
        drop(first);
        assert!(keys.admit(&bearing("moon")).is_ok());
    }

    #[test]
    fn a_file_says_what_is_wrong_with_it() {
        let twice = format!("a {MOON}\na {}", MOON.replace('9', "8"));
        for (text, cause) in [
            ("", "names no key"),
            ("alice", "line 1 something else"),
            ("\nalice moon", "line 2 a hash"),
            (&format!("a/b {MOON}"), "a name that is not plain"),
            (&format!("a {MOON} 0"), "a number of requests"),
            (&twice, "line 2 a name or key"),
        ] {
            let error = ApiKeys::parse(text).err().unwrap();
            assert!(error.contains(cause), "{text:?}: {error}");
        }
    }
}
