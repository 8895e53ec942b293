//! Whether a browser asks for another site's page. Such a page can make it send requests to this machine, with no token where none is
//! wanted; what it says of itself it says in headers that no page can set. Refuses nobody who is no browser.

use std::net::{IpAddr, Ipv6Addr};

use actix_web::{
    dev::ServiceRequest,
    http::{
        Method, StatusCode,
        header::{HOST, HeaderMap, HeaderValue, ORIGIN},
    },
};
use asterism_actors::api::bounds;

use super::error::Refusal;
use crate::cluster::Origins;

/// Where the browser says whose page asks, and what for.
const FETCH_SITE: &str = "sec-fetch-site";
const FETCH_MODE: &str = "sec-fetch-mode";

/// What a listener is like, as far as pages in browsers are concerned.
#[derive(Clone, Debug)]
pub struct OriginRules {
    /// Whether it wants neither token nor key.
    pub open: bool,
    /// Whose pages may ask.
    pub origins: Origins,
    /// What to set for another page to be let in, if anything.
    pub let_in: Option<&'static str>,
    /// What to set for it to be asked by another name.
    pub close: &'static str,
}

impl OriginRules {
    /// Refuses what another site's page asks for.
    pub fn check(&self, request: &ServiceRequest) -> Result<(), Refusal> {
        let is_loopback = request.app_config().local_addr().ip().is_loopback();
        // A link on another page leads here, and that page reads nothing of where it led.
        let follows = |headers: &HeaderMap| headers.get(FETCH_MODE).is_some_and(|mode| mode == "navigate");
        let leads =
            request.method() == Method::GET && !request.path().starts_with("/api/") && follows(request.headers());
        self.check_headers(request.headers(), (is_loopback, leads))
    }

    /// The same of a request's headers. On a listener that only this machine reaches and that wants no token, names are refused too:
    /// a site can have its own name mean this machine.
    fn check_headers(&self, headers: &HeaderMap, (is_loopback, leads): (bool, bool)) -> Result<(), Refusal> {
        let text =
            |value: Option<&HeaderValue>| value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let (host, origin) = (text(headers.get(HOST)).unwrap_or_default(), text(headers.get(ORIGIN)));
        let foreign = match (text(headers.get(FETCH_SITE)).as_deref(), &origin) {
            (_, Some(origin)) if self.origins.allows(origin) => false,
            (Some(site), _) => !["same-origin", "none"].contains(&site),
            (None, Some(origin)) => origin.split_once("://").map(|(_, authority)| authority) != Some(host.as_str()),
            (None, None) => false,
        };
        if foreign && !leads {
            let whose = bounds::shown(&origin.unwrap_or_else(|| "another site".into()));
            let remedy = self.let_in.map(|remedy| format!(": to let others, {remedy}")).unwrap_or_default();
            let message = format!("a page of {whose} asks in a browser; only this address's own page may{remedy}");
            return Err(Refusal::of(StatusCode::FORBIDDEN, "cross_origin", message));
        }
        if is_loopback && self.open && !is_this_machine(&host) {
            let message = format!(
                "the request is for host '{}', and this API, which asks nobody who he is, answers to localhost and \
                 addresses only: ask for one of these, or set {}",
                bounds::shown(&host),
                self.close
            );
            return Err(Refusal::of(StatusCode::FORBIDDEN, "cross_origin", message));
        }
        Ok(())
    }
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
    use actix_web::http::header::HeaderName;

    use super::*;

    type Given = [(&'static str, &'static str)];

    fn rules(open: bool, origins: &[&str]) -> OriginRules {
        let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
        let origins = Origins::read(&origins).unwrap();
        OriginRules { open, origins, let_in: Some("set [api] allow_origins"), close: "[api] api_key_file" }
    }

    fn checked(rules: &OriginRules, given: &Given, listener: (bool, bool)) -> Result<(), Refusal> {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        rules.check_headers(&given.iter().map(pair).collect::<HeaderMap>(), listener)
    }

    #[test]
    fn origins_that_are_let_in_may_ask_and_no_others() {
        let page = |origin| [("host", "127.0.0.1:8000"), ("origin", origin), ("sec-fetch-site", "cross-site")];
        let (some, any) = (rules(true, &["https://app.example", "http://localhost:3000"]), rules(true, &["*"]));
        for (origin, good) in [
            ("https://app.example", true),
            ("http://localhost:3000", true),
            ("http://app.example", false),
            ("https://app.example.evil", false),
            ("https://app.example:444", false),
            ("null", false),
        ] {
            assert_eq!(checked(&some, &page(origin), (true, false)).is_ok(), good, "{origin}");
            assert!(checked(&any, &page(origin), (true, false)).is_ok(), "{origin}");
        }
        let refused = checked(&some, &page("https://evil"), (true, false)).unwrap_err().to_string();
        assert!(refused.contains("set [api] allow_origins"), "{refused}");
        let renamed = [("host", "evil.example"), ("origin", "https://app.example")];
        let refused = checked(&some, &renamed, (true, false)).unwrap_err().to_string();
        assert!(refused.contains("[api] api_key_file"), "{refused}");
        for wrong in
            ["", "app.example", "https://", "https://a/", "https://a/b", "ftp://a", "https://A", "https://*.a", "null"]
        {
            assert!(Origins::read(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_link_leads_here_from_everywhere() {
        let (open, page) = (rules(true, &[]), [("host", "127.0.0.1:7401"), ("sec-fetch-site", "cross-site")]);
        assert!(checked(&open, &page, (true, true)).is_ok() && checked(&open, &page, (true, false)).is_err());
        assert!(checked(&open, &[("host", "evil.example")], (true, true)).is_err());
    }

    #[test]
    fn only_the_consoles_own_page_asks_in_a_browser() {
        let check = |given: &Given, (is_loopback, open): (bool, bool)| {
            checked(&rules(open, &[]), given, (is_loopback, false)).is_ok()
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
