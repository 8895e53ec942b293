//! Where somebody is, by address or by name. A name is resolved whenever it is needed, since what it stands for moves.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    str::FromStr,
};

use thiserror::Error;

use crate::error::TransportError;

/// Longest name of a host (RFC 1035).
const LONGEST_NAME: usize = 253;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Its address.
    Address(IpAddr),
    /// Its name, which DNS or the system's file of hosts knows.
    Name(String),
}

/// A machine and a port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacePort {
    /// The machine.
    pub place: Place,
    /// The port.
    pub port: u16,
}

/// The places of somebody who is at one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places(Vec<PlacePort>);

/// What is neither an address nor a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{got}' is no address and no name; expected {expected}")]
pub struct PlaceError {
    /// What was given.
    pub got: String,
    /// What was expected.
    pub expected: &'static str,
}

const EXPECTED_PLACE: &str = "an IP address, or a name such as south.example";
const EXPECTED_PORT: &str = "an IP address or a name, and a port, such as 10.0.0.1:7400 or south.example:7400";

impl Place {
    /// Its address now: of a name the first, before others one of IPv4.
    ///
    /// # Errors
    /// Where the name has no address, or nobody who knows can be asked. It blocks.
    pub fn resolve(&self) -> io::Result<IpAddr> {
        match self {
            Self::Address(address) => Ok(*address),
            Self::Name(name) => {
                let found: Vec<IpAddr> = (name.as_str(), 0).to_socket_addrs()?.map(|found| found.ip()).collect();
                let best = found.iter().find(|found| found.is_ipv4()).or(found.first());
                best.copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it has no address"))
            }
        }
    }
}

impl PlacePort {
    /// Its address now, as [`Place::resolve`]. It blocks.
    ///
    /// # Errors
    /// Where the name has no address.
    pub fn resolve(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::new(self.place.resolve()?, self.port))
    }

    /// Its address now, without blocking.
    ///
    /// # Errors
    /// [`TransportError::NoAddress`] where the name has none.
    pub async fn look_up(&self) -> Result<SocketAddr, TransportError> {
        if let Place::Address(address) = self.place {
            return Ok(SocketAddr::new(address, self.port));
        }
        let place = self.clone();
        let resolved = tokio::task::spawn_blocking(move || place.resolve()).await;
        let cause = match resolved {
            Ok(Ok(address)) => return Ok(address),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        Err(TransportError::NoAddress { name: self.place.to_string(), cause })
    }
}

impl Places {
    /// All of them; at least one.
    pub fn all(&self) -> &[PlacePort] {
        &self.0
    }

    /// The first of them.
    pub fn first(&self) -> &PlacePort {
        &self.0[0]
    }
}

impl From<PlacePort> for Places {
    fn from(place: PlacePort) -> Self {
        Self(vec![place])
    }
}

impl From<SocketAddr> for Places {
    fn from(address: SocketAddr) -> Self {
        PlacePort::from(address).into()
    }
}

/// As text, with commas between them.
impl FromStr for Places {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        text.split(',').map(|place| place.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Places {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, place) in self.0.iter().enumerate() {
            write!(formatter, "{}{place}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl From<IpAddr> for Place {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<SocketAddr> for PlacePort {
    fn from(address: SocketAddr) -> Self {
        Self { place: address.ip().into(), port: address.port() }
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let plain = |label: &str| {
            let bytes = label.as_bytes();
            !label.is_empty()
                && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
                && bytes[0] != b'-'
        };
        let labels = text.strip_suffix('.').unwrap_or(text);
        // Numbers alone are an address that somebody mistyped.
        let named = labels.bytes().any(|byte| byte.is_ascii_alphabetic());
        match named && text.len() <= LONGEST_NAME && labels.split('.').all(plain) {
            true => Ok(Self::Name(text.to_owned())),
            false => Err(PlaceError { got: text.to_owned(), expected: EXPECTED_PLACE }),
        }
    }
}

impl FromStr for PlacePort {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let parsed = text.rsplit_once(':').and_then(|(name, port)| {
            let place: Place = name.parse().ok()?;
            // An address of IPv6 stands in brackets, and was parsed above.
            matches!(place, Place::Name(_)).then_some(Self { place, port: port.parse().ok()? })
        });
        parsed.ok_or_else(|| PlaceError { got: text.to_owned(), expected: EXPECTED_PORT })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(formatter, "{address}"),
            Self::Name(name) => formatter.write_str(name),
        }
    }
}

impl fmt::Display for PlacePort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Address(address) => write!(formatter, "{}", SocketAddr::new(*address, self.port)),
            Place::Name(name) => write!(formatter, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_places_stand_with_commas_between_them() {
        let places: Places = "10.0.0.1:7400, south:7400".parse().unwrap();
        assert_eq!((places.to_string().as_str(), places.all().len()), ("10.0.0.1:7400,south:7400", 2));
        assert_eq!(places.to_string().parse(), Ok(places));
        let refused = "10.0.0.1:7400,,".parse::<Places>().unwrap_err();
        assert!(refused.to_string().starts_with("'' is no address"), "{refused}");
    }

    #[test]
    fn addresses_and_names_are_told_apart() {
        for text in ["10.0.0.1:7400", "[::1]:7400", "south:7400", "asterism-0.hosts.example.:7400", "a_b:0"] {
            let parsed: PlacePort = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            assert_eq!(matches!(parsed.place, Place::Address(_)), text.starts_with(['1', '[']), "{text}");
        }
        for text in [
            "",
            ":7400",
            "south",
            "south:",
            "south:70000",
            "10.0.0:1",
            "::1:7400",
            "so uth:1",
            "-a:1",
            "a..b:1",
            "a/b:1",
        ] {
            let refused = text.parse::<PlacePort>().unwrap_err();
            assert!(refused.to_string().contains("such as 10.0.0.1:7400 or south.example:7400"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_when_it_is_needed() {
        let local: PlacePort = "localhost:7400".parse().unwrap();
        assert!(local.look_up().await.unwrap().ip().is_loopback());
        let nobody: PlacePort = "nobody.invalid:7400".parse().unwrap();
        let error = nobody.look_up().await.unwrap_err();
        assert_eq!(error.code(), "no_address");
        assert!(error.to_string().contains("nobody.invalid"), "{error}");
    }
}
