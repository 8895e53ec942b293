//! What is asked of a hub: which files a revision has, and their bytes. Writes nothing to disk.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::RootCertStore;
use serde::Deserialize;
use ureq::{
    Agent, Body,
    http::{Response, Uri},
};

use super::{
    cache,
    error::HubError,
    name::{HubName, is_file},
    origin::{Origin, is_redirect, redirected},
    retry,
};
use crate::{
    api::http::tls,
    client::{Trust, agent, path::segment, tls_failure},
};

/// The hub that is asked where the environment names no other.
const ENDPOINT: &str = "https://huggingface.co";
const HUB_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest pause without a byte, of an answer that has yet to begin too; how long all of its bytes take is not bounded.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
/// Most seconds that the environment may have as such a pause.
const MOST_SILENCE: u64 = 86_400;
/// Redirects of one request.
const MOST_REDIRECTS: usize = 10;
/// Longest list of files.
const LONGEST_LISTING: u64 = 64 << 20;
/// Most files of a repository.
const MOST_LISTED_FILES: usize = 100_000;

/// Where systems keep the authorities that they trust.
const AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How the hub is reached.
#[derive(Clone, Debug, Default)]
pub struct HubAccess {
    /// A file whose first line is the token.
    pub token_file: Option<PathBuf>,
    /// A PEM file of the authorities that it is proved by.
    pub authorities: Option<PathBuf>,
}

/// A hub.
pub struct HubClient {
    endpoint: String,
    /// Who gets the token.
    origin: Origin,
    /// Longest pause without a byte.
    silence: Duration,
    token: Option<String>,
    agent: Agent,
    /// Why no authorities are known, where none are.
    untrusted: Option<String>,
}

/// What is asked of a hub.
struct Ask<'a> {
    /// As errors name it.
    what: &'a str,
    address: String,
    /// The file's bytes from here on.
    start: u64,
    /// What it is rather than its bytes.
    head: bool,
}

/// A file of a revision, as the hub has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// Its name within the repository.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its hash.
    pub hash: BlobHash,
}

/// The hash by which a hub knows a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobHash {
    /// SHA-256 of the file: large ones.
    Sha256(String),
    /// Git's SHA-1 of it as a blob.
    Git(String),
}

impl BlobHash {
    /// Of hexadecimal digits: their number tells which it is.
    fn of(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches("W/").trim_matches('"').trim_start_matches("sha256:");
        let hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        match text.len() {
            64 if hex => Some(Self::Sha256(text.to_owned())),
            40 if hex => Some(Self::Git(text.to_owned())),
            _ => None,
        }
    }

    /// Its digits.
    pub fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }
}

#[derive(Deserialize)]
struct Listing {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    oid: Option<String>,
    size: Option<u64>,
}

/// The files of a revision.
pub struct Revision {
    /// Its commit.
    pub commit: String,
    listed: Vec<Sibling>,
}

impl Revision {
    /// Names of the files.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.listed.iter().map(|file| file.rfilename.clone()).collect();
        names.sort();
        names
    }
}

impl HubClient {
    /// The hub that the environment names: HF_ENDPOINT, with the token of HF_TOKEN, of the file that HF_TOKEN_PATH names, or of `token`
    /// beside the cache. HF_HUB_DOWNLOAD_TIMEOUT has the seconds that it may be silent for.
    ///
    /// # Errors
    /// [`HubError::Setup`] for files that cannot be read, and for settings that mean nothing.
    pub fn of_environment(access: &HubAccess) -> Result<Self, HubError> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let origin = endpoint.parse().ok().and_then(|uri| Origin::of(&uri));
        let origin = origin.ok_or_else(|| {
            HubError::Setup(format!("HF_ENDPOINT is {endpoint:?}: expected http:// or https:// with a host"))
        })?;
        let silence = silence()?;
        let (trust, untrusted) = match authorities(access.authorities.as_deref()) {
            Ok(trust) => (Some(trust), None),
            Err(error) if endpoint.starts_with("https://") => return Err(error),
            // They are wanted where the hub sends to files that are kept elsewhere, if it does.
            Err(error) => (None, Some(error.to_string())),
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(HUB_CONNECT_TIMEOUT))
            .timeout_per_read(Some(silence))
            .max_redirects(0);
        let (token, agent) = (token(access)?, agent(config.build(), trust.as_ref()));
        Ok(Self { endpoint, origin, silence, token, agent, untrusted })
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What a name's revision has.
    ///
    /// # Errors
    /// As the hub answers.
    pub(super) fn revision(&self, name: &HubName) -> Result<Revision, HubError> {
        let what = format!("model {}", HubName { file: None, ..name.clone() });
        let revision = name.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, name.repository);
        let mut answer = self.asked(&Ask { what: &what, address: url, start: 0, head: false })?;
        let unreadable = |cause: String| HubError::Answer { what: what.clone(), cause };
        let text = answer.body_mut().with_config().limit(LONGEST_LISTING).read_to_vec();
        let text = text.map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => unreadable(error.to_string()),
            error => self.lost(what.clone(), &error),
        })?;
        let Listing { sha, siblings } =
            serde_json::from_slice(&text).map_err(|error| unreadable(format!("no list of files: {error}")))?;
        let commit = sha.filter(|sha| BlobHash::of(sha).is_some());
        let commit = commit.ok_or_else(|| unreadable("it names no commit (sha)".to_owned()))?;
        if siblings.len() > MOST_LISTED_FILES {
            return Err(unreadable(format!("{} files, at most {MOST_LISTED_FILES} are expected", siblings.len())));
        }
        if let Some(file) = siblings.iter().find(|file| !is_file(&file.rfilename)) {
            return Err(unreadable(format!("{:?} is no name of a file", file.rfilename)));
        }
        Ok(Revision { commit, listed: siblings })
    }

    /// A file of a revision, with its size and hash: asked for where the list has none.
    ///
    /// # Errors
    /// As the hub answers; [`HubError::Answer`] where it does not say what the file is.
    pub(super) fn file(&self, name: &HubName, revision: &Revision, file: &str) -> Result<HubFile, HubError> {
        let listed = revision.listed.iter().find(|listed| listed.rfilename == file);
        if let Some(Sibling { size, blob_id, lfs, .. }) = listed {
            let large = lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref().or(lfs.oid.as_deref()));
            let hash = large.or(blob_id.as_deref()).and_then(BlobHash::of);
            if let (Some(hash), Some(bytes)) = (hash, lfs.as_ref().and_then(|lfs| lfs.size).or(*size)) {
                return Ok(HubFile { name: file.to_owned(), bytes, hash });
            }
        }
        let what = self.what(name, file);
        let address = self.address(name, &revision.commit, file);
        let answer = self.asked(&Ask { what: &what, address, start: 0, head: true })?;
        let header = |names: [&str; 2]| {
            names.iter().find_map(|name| answer.headers().get(*name)?.to_str().ok().map(str::to_owned))
        };
        let hash = header(["x-linked-etag", "etag"]).as_deref().and_then(BlobHash::of);
        let bytes = header(["x-linked-size", "content-length"]).and_then(|bytes| bytes.parse().ok());
        match (hash, bytes) {
            (Some(hash), Some(bytes)) => Ok(HubFile { name: file.to_owned(), bytes, hash }),
            _ => {
                let cause = "neither its list of files nor a header has a size and a hash".to_owned();
                Err(HubError::Answer { what, cause })
            }
        }
    }

    /// The bytes of a file, from `start` on if the hub can: what comes, and whether it begins there.
    pub(super) fn bytes(
        &self,
        name: &HubName,
        commit: &str,
        file: &HubFile,
        start: u64,
    ) -> Result<(impl io::Read + use<>, bool), HubError> {
        let what = self.what(name, &file.name);
        let address = self.address(name, commit, &file.name);
        let answer = self.asked(&Ask { what: &what, address, start, head: false })?;
        let goes_on = answer.status().as_u16() == 206;
        Ok((answer.into_body().into_with_config().limit(u64::MAX).reader(), goes_on))
    }

    /// A file, as errors name it.
    pub(super) fn what(&self, name: &HubName, file: &str) -> String {
        format!("{}:{file}", name.repository)
    }

    /// That an answer began and did not come to its end.
    pub(super) fn lost(&self, what: String, error: &ureq::Error) -> HubError {
        HubError::Unreachable { what, cause: self.cause(error), passes: true }
    }

    fn cause(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(ureq::Timeout::PerRead) => format!("no byte came for {} s", self.silence.as_secs()),
            ureq::Error::Io(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
                "the connection was closed".to_owned()
            }
            error => match (error, &self.untrusted) {
                (ureq::Error::Tls(_), Some(why)) => format!("{error}: {why}; name authorities in SSL_CERT_FILE"),
                (error, _) => error.to_string(),
            },
        }
    }

    fn address(&self, name: &HubName, commit: &str, file: &str) -> String {
        let segment = |part| segment(part).expect("a file's name has parts that are names");
        let file: Vec<String> = file.split('/').map(segment).collect();
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, name.repository, file.join("/"))
    }

    /// Asks, at the address that the hub sends us to if it does. What is kept elsewhere the hub itself says what it is.
    fn asked(&self, ask: &Ask<'_>) -> Result<Response<Body>, HubError> {
        let unusable = |cause: String| HubError::Answer { what: ask.what.to_owned(), cause };
        let mut uri: Uri = ask.address.parse().map_err(|error| unusable(format!("{}: {error}", ask.address)))?;
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.asked_once(ask, &uri)?;
            let status = answer.status();
            if !is_redirect(status) {
                return checked(ask.what, answer);
            }
            let location = answer.headers().get("location").and_then(|location| location.to_str().ok());
            let next = location.and_then(|location| redirected(&uri, location));
            let next = next.ok_or_else(|| unusable(format!("HTTP {} without a place to go on", status.as_u16())))?;
            let is_elsewhere = Origin::of(&next).as_ref() != Some(&self.origin);
            if ask.head && (is_elsewhere || answer.headers().contains_key("x-linked-etag")) {
                return Ok(answer);
            }
            uri = next;
        }
        Err(unusable(format!("more than {MOST_REDIRECTS} redirects")))
    }

    fn asked_once(&self, ask: &Ask<'_>, uri: &Uri) -> Result<Response<Body>, HubError> {
        let request = if ask.head { self.agent.head(uri) } else { self.agent.get(uri) };
        let mut request = request.header("user-agent", concat!("asterism/", env!("CARGO_PKG_VERSION")));
        if ask.start > 0 {
            request = request.header("range", format!("bytes={}-", ask.start));
        }
        let origin = Origin::of(uri);
        // An address elsewhere bears rights of its own, and who is there must not learn the token.
        if let Some(token) = self.token.as_ref().filter(|_| origin.as_ref() == Some(&self.origin)) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| {
            let at = origin.as_ref().unwrap_or(&self.origin);
            let cause = format!("{at}: {}", self.cause(&error));
            HubError::Unreachable { what: ask.what.to_owned(), cause, passes: may_pass(&error) }
        })
    }
}

/// An answer that has what was asked for.
fn checked(what: &str, answer: Response<Body>) -> Result<Response<Body>, HubError> {
    let what = what.to_owned();
    let asked = retry::asked_wait(answer.status(), answer.headers(), SystemTime::now());
    match answer.status().as_u16() {
        200..=299 => Ok(answer),
        status @ (401 | 403) => Err(HubError::Refused { what, status }),
        404 => Err(HubError::NotFound { what }),
        429 => Err(HubError::Limited { what, asked }),
        status => Err(HubError::Status { what, status, asked }),
    }
}

/// Whether a request that failed may succeed soon: who does not prove herself, or speaks something else, will not by then.
fn may_pass(error: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, HostNotFound, Io, Timeout};
    matches!(error, ConnectionFailed | HostNotFound | Io(_) | Timeout(_)) && tls_failure(error).is_none()
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn silence() -> Result<Duration, HubError> {
    let Some(typed) = variable("HF_HUB_DOWNLOAD_TIMEOUT") else { return Ok(LONGEST_SILENCE) };
    let seconds = typed.parse().ok().filter(|seconds| (1..=MOST_SILENCE).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        HubError::Setup(format!("HF_HUB_DOWNLOAD_TIMEOUT is {typed:?}: expected whole seconds, 1 to {MOST_SILENCE}"))
    })
}

fn token(access: &HubAccess) -> Result<Option<String>, HubError> {
    let read = |path: &Path| {
        let text = fs::read_to_string(path);
        let first = text.map(|text| text.lines().next().unwrap_or_default().trim().to_owned());
        first.map_err(|error| HubError::Setup(format!("the token file {}: {error}", path.display())))
    };
    let named = access.token_file.clone().or_else(|| variable("HF_TOKEN_PATH").map(PathBuf::from));
    let token = match (named, variable("HF_TOKEN")) {
        (Some(path), _) => Some(read(&path)?),
        (None, Some(token)) => Some(token),
        (None, None) => {
            let usual = cache::home().map(|home| home.join("token")).filter(|path| path.is_file());
            usual.as_deref().map(read).transpose()?
        }
    };
    match token.filter(|token| !token.is_empty()) {
        Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(HubError::Setup("the hub's token has characters that no token has".to_owned()))
        }
        token => Ok(token),
    }
}

fn authorities(named: Option<&Path>) -> Result<Trust, HubError> {
    let usual = || AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let named = named.map(Path::to_owned).or_else(|| variable("SSL_CERT_FILE").map(PathBuf::from)).or_else(usual);
    let Some(path) = named else {
        return Err(HubError::Setup(
            "this system has no file of authorities where they usually are: name one in SSL_CERT_FILE".to_owned(),
        ));
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(tls::certificates(&path).map_err(|error| HubError::Setup(error.to_string()))?);
    Ok(Trust::Authorities(Arc::new(roots)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_told_apart_by_their_length() {
        let (large, small) = ("ab".repeat(32), "0f".repeat(20));
        assert_eq!(BlobHash::of(&format!("\"{large}\"")), Some(BlobHash::Sha256(large.clone())));
        assert_eq!(BlobHash::of(&format!("W/\"{small}\"")), Some(BlobHash::Git(small)));
        for wrong in ["", "../../etc/passwd", &large.to_uppercase(), "ab"] {
            assert_eq!(BlobHash::of(wrong), None);
        }
    }
}
