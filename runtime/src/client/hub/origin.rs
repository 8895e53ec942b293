//! Where a request goes: whose address it is, and where a redirect leads. Asks nobody.

use std::fmt;

use ureq::http::{StatusCode, Uri};

/// Who answers at an address: no other scheme, host or port is the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    scheme: &'static str,
    host: String,
    port: u16,
}

impl Origin {
    /// Of an address that begins with `http://` or `https://` and has a host.
    pub fn of(uri: &Uri) -> Option<Self> {
        let (scheme, usual) = match uri.scheme_str()? {
            "http" => ("http", 80),
            "https" => ("https", 443),
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        Some(Self { scheme, host, port: uri.port_u16().unwrap_or(usual) })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port } = self;
        match (*scheme, port) {
            ("http", 80) | ("https", 443) => write!(f, "{scheme}://{host}"),
            _ => write!(f, "{scheme}://{host}:{port}"),
        }
    }
}

/// Whether an answer says that what was asked for is at another address.
pub(super) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Where a `Location` leads from an address, of another one of [`Origin`]'s kind. RFC 3986, section 4.2.
pub(super) fn redirected(from: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let is_whole = location.parse::<Uri>().is_ok_and(|uri| uri.scheme().is_some());
    let whole = match location {
        _ if is_whole => location.to_owned(),
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        // Of a scheme that is none of ours.
        _ if location.split(['/', '?']).next().is_some_and(|first| first.contains(':')) => return None,
        _ => {
            let (folder, _) = from.path().rsplit_once('/').unwrap_or_default();
            format!("{scheme}://{authority}{folder}/{location}")
        }
    };
    whole.parse().ok().filter(|uri| Origin::of(uri).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Option<Origin> {
        Origin::of(&address.parse().unwrap())
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        let hub = of("https://hub.co/api").unwrap();
        assert_eq!(hub.to_string(), "https://hub.co");
        for same in ["https://hub.co:443/x", "https://HUB.co", "https://hub.co?x"] {
            assert_eq!(of(same).as_ref(), Some(&hub), "{same}");
        }
        let others = [
            "http://hub.co",
            "http://hub.co:443",
            "https://hub.co:8443",
            "https://cdn.hub.co",
            "https://hub.co.evil.org",
            "https://hub.co@evil.org",
        ];
        for other in others {
            assert_ne!(of(other).unwrap(), hub, "{other}");
        }
        assert_eq!((of("ftp://hub.co"), of("/path"), of("hub.co")), (None, None, None));
    }

    #[test]
    fn a_redirect_leads_where_its_location_says() {
        let from: Uri = "https://hub.co:8443/org/old/resolve/main/a?b=c".parse().unwrap();
        let redirected = |location: &str| redirected(&from, location).map(|uri| uri.to_string());
        for (location, expected) in [
            ("/org/new/a?d=e", "https://hub.co:8443/org/new/a?d=e"),
            ("b/c", "https://hub.co:8443/org/old/resolve/main/b/c"),
            ("//cdn.co/x", "https://cdn.co/x"),
            ("https://cdn.co/x?u=https://hub.co", "https://cdn.co/x?u=https://hub.co"),
            ("/x?u=https://cdn.co", "https://hub.co:8443/x?u=https://cdn.co"),
        ] {
            assert_eq!(redirected(location).as_deref(), Some(expected));
        }
        for wrong in ["ftp://hub.co/x", "file:///etc/passwd", "//", "/a b"] {
            assert_eq!(redirected(wrong), None, "{wrong}");
        }
    }
}
