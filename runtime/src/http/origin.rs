//! Whether a browser asks for another site's page. Such a page can make it send requests to this machine, with no token where none is
//! wanted; what it says of itself it says in headers that no page can set. Refuses nobody who is no browser.

use std::net::{IpAddr, Ipv6Addr};

use actix_web::http::{
    StatusCode,
    header::{HOST, HeaderMap, ORIGIN},
};
use asterism_actors::api::bounds;

use super::error::Refusal;

/// Where the browser says whose page asks.
const FETCH_SITE: &str = "sec-fetch-site";

/// Refuses what another site's page asks for. On a listener that only this machine reaches (`loopback`) and that wants no token,
/// names are refused too: a site can have its own name mean this machine.
pub fn check(headers: &HeaderMap, (loopback, open): (bool, bool)) -> Result<(), Refusal> {
    let text = |value: Option<&actix_web::http::header::HeaderValue>| {
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let (host, origin) = (text(headers.get(HOST)).unwrap_or_default(), text(headers.get(ORIGIN)));
    let foreign = match (text(headers.get(FETCH_SITE)).as_deref(), &origin) {
        (Some(site), _) => !["same-origin", "none"].contains(&site),
        (None, Some(origin)) => origin.split_once("://").map(|(_, authority)| authority) != Some(host.as_str()),
        (None, None) => false,
    };
    if foreign {
        let whose = bounds::shown(&origin.unwrap_or_else(|| "another site".into()));
        let message = format!("a page of {whose} asks in a browser; only this address's own page may");
        return Err(Refusal::of(StatusCode::FORBIDDEN, "cross_origin", message));
    }
    if loopback && open && !is_this_machine(&host) {
        let message = format!(
            "the request is for host '{}', and this API, which wants no token, answers to localhost and addresses only: \
             ask for one of these, or set [security] token_file",
            bounds::shown(&host)
        );
        return Err(Refusal::of(StatusCode::FORBIDDEN, "cross_origin", message));
    }
    Ok(())
}

/// Whether a `Host` names no name that somebody else decides the meaning of.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => return address.parse::<Ipv6Addr>().is_ok(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_the_consoles_own_page_asks_in_a_browser() {
        let check = |given: &[(&'static str, &'static str)], listener| {
            let pair = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            check(&given.iter().map(pair).collect::<HeaderMap>(), listener).is_ok()
        };
        let (open, closed, wide) = ((true, true), (true, false), (false, true));
        for (given, listener, good) in [
            // No browser.
            (&[][..], open, true),
            (&[("host", "127.0.0.1:7401")], open, true),
            (&[("host", "localhost:7401")], open, true),
            (&[("host", "[::1]:7401")], open, true),
            // A browser, on the console's page.
            (&[("host", "127.0.0.1:7401"), ("sec-fetch-site", "same-origin")], open, true),
            (&[("host", "10.0.0.1:7401"), ("origin", "http://10.0.0.1:7401")], wide, true),
            // Behind a proxy that names another host.
            (&[("host", "inner"), ("origin", "https://outer"), ("sec-fetch-site", "same-origin")], closed, true),
            // Another site's page.
            (&[("host", "127.0.0.1:7401"), ("origin", "http://evil.example")], open, false),
            (&[("host", "127.0.0.1:7401"), ("origin", "http://127.0.0.1:8080")], open, false),
            (&[("host", "127.0.0.1:7401"), ("origin", "null")], open, false),
            (&[("host", "127.0.0.1:7401"), ("sec-fetch-site", "cross-site")], closed, false),
            (&[("host", "127.0.0.1:7401"), ("sec-fetch-site", "same-site")], wide, false),
            // A name that a site has mean this machine.
            (&[("host", "evil.example:7401"), ("origin", "http://evil.example:7401")], open, false),
            (&[("host", "evil.example:7401"), ("sec-fetch-site", "same-origin")], open, false),
            (&[("host", "127.0.0.1.evil.example")], open, false),
            (&[("host", "[evil]:7401")], open, false),
            (&[("host", "north:7401")], wide, true),
            (&[("host", "north:7401")], closed, true),
        ] {
            assert_eq!(check(given, listener), good, "{given:?} {listener:?}");
        }
    }
}
