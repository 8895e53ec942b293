//! What is asked of a hub: which files a revision has, and their bytes. Writes nothing to disk.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::RootCertStore;
use serde::Deserialize;
use ureq::{Agent, Body, http::Response};

use super::{
    cache,
    error::HubError,
    name::{HubName, is_file},
};
use crate::{
    api::http::tls,
    client::{Trust, agent, path::segment},
};

/// The hub that is asked where the environment names no other.
const ENDPOINT: &str = "https://huggingface.co";
const HUB_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For an answer to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// For one answer's bytes: a transfer that takes longer goes on in another.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);
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
    token: Option<String>,
    agent: Agent,
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
    /// beside the cache.
    ///
    /// # Errors
    /// [`HubError::Setup`] for files that cannot be read.
    pub fn of_environment(access: &HubAccess) -> Result<Self, HubError> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(HubError::Setup(format!("HF_ENDPOINT is {endpoint:?}: expected http:// or https://")));
        }
        let trust = match endpoint.starts_with("https://") {
            true => Some(authorities(access.authorities.as_deref())?),
            false => None,
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(HUB_CONNECT_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_recv_body(Some(TRANSFER_TIMEOUT));
        Ok(Self { endpoint, token: token(access)?, agent: agent(config.build(), trust.as_ref()) })
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
        let mut answer = self.asked(&what, self.agent.get(&url))?;
        let unreadable = |cause: String| HubError::Answer { what: what.clone(), cause };
        let text = answer.body_mut().with_config().limit(LONGEST_LISTING).read_to_vec();
        let text = text.map_err(|error| unreadable(error.to_string()))?;
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
        let what = format!("{}:{file}", name.repository);
        // Where it is kept elsewhere, the hub itself says what it is.
        let request = self.agent.head(self.address(name, &revision.commit, file));
        let request = request.config().max_redirects(0).build();
        let answer = self.asked(&what, request)?;
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
        let what = format!("{}:{}", name.repository, file.name);
        let mut request = self.agent.get(self.address(name, commit, &file.name));
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        let answer = self.asked(&what, request)?;
        let goes_on = answer.status().as_u16() == 206;
        Ok((answer.into_body().into_with_config().limit(u64::MAX).reader(), goes_on))
    }

    fn address(&self, name: &HubName, commit: &str, file: &str) -> String {
        let segment = |part| segment(part).expect("a file's name has parts that are names");
        let file: Vec<String> = file.split('/').map(segment).collect();
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, name.repository, file.join("/"))
    }

    fn asked(
        &self,
        what: &str,
        mut request: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
    ) -> Result<Response<Body>, HubError> {
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.header("user-agent", concat!("asterism/", env!("CARGO_PKG_VERSION"))).call();
        let answer = answer.map_err(|error| HubError::Unreachable {
            what: what.to_owned(),
            cause: format!("{}: {error}", self.endpoint),
        })?;
        match answer.status().as_u16() {
            200..=399 => Ok(answer),
            status @ (401 | 403) => Err(HubError::Refused { what: what.to_owned(), status }),
            404 => Err(HubError::NotFound { what: what.to_owned() }),
            status => Err(HubError::Status { what: what.to_owned(), status }),
        }
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
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
