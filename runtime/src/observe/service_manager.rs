//! What a service manager such as systemd is notified of: that it is ready, that it lives, and that it ends. Where none asked
//! for it, nothing is sent.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

/// A service manager that takes notifications of this process.
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// Without a sign of life for so long it ends this process.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that started this process with `Type=notify`, as its environment says.
    pub fn of_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let watched = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let limit = variable("WATCHDOG_USEC").filter(|_| watched).and_then(|text| text.parse().ok());
        Self::at(&variable("NOTIFY_SOCKET")?, limit.map(Duration::from_micros))
    }

    fn at(path: &str, watchdog: Option<Duration>) -> Option<Self> {
        let address = match path.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(path),
        };
        let found = address.and_then(|address| Ok((UnixDatagram::unbound()?, address)));
        match found {
            Ok((socket, address)) => Some(Self { socket, address, watchdog }),
            Err(error) => {
                tracing::warn!(path, %error, "the service manager cannot be told of this process");
                None
            }
        }
    }

    fn notify(&self, text: &str) {
        // A manager that is gone needs no word.
        let _ = self.socket.send_to_addr(text.as_bytes(), &self.address);
    }

    /// It serves; from now on it gives signs of life while `lives` says so.
    pub fn ready(self, status: &str, lives: impl Fn() -> bool + Send + 'static) -> ToldManager {
        self.notify(&format!("READY=1\nSTATUS={}", one_line(status)));
        let told =
            self.socket.try_clone().ok().map(|socket| Self { socket, address: self.address.clone(), watchdog: None });
        let Some(limit) = self.watchdog else { return ToldManager { manager: told, life: None } };
        let life = tokio::spawn(async move {
            loop {
                if lives() {
                    self.notify("WATCHDOG=1");
                }
                tokio::time::sleep(limit / 3).await;
            }
        });
        ToldManager { manager: told, life: Some(life) }
    }
}

/// A service manager that was notified that this process serves.
pub struct ToldManager {
    manager: Option<ServiceManager>,
    life: Option<tokio::task::JoinHandle<()>>,
}

impl ToldManager {
    /// It ends, and why; signs of life go on until it has.
    pub fn stopping(&self, why: &str) {
        if let Some(manager) = &self.manager {
            manager.notify(&format!("STOPPING=1\nSTATUS=ends: {}", one_line(why)));
        }
    }
}

impl Drop for ToldManager {
    fn drop(&mut self) {
        if let Some(life) = &self.life {
            life.abort();
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_manager_hears_of_the_start_of_life_and_of_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let heard = UnixDatagram::bind(&path).unwrap();
        heard.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let next = || {
            let mut buffer = [0; 256];
            let length = heard.recv(&mut buffer).expect("it is told");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        let manager = ServiceManager::at(path.to_str().unwrap(), Some(Duration::from_millis(30))).unwrap();
        let (lives, says) = (Arc::new(AtomicBool::new(true)), Duration::from_millis(200));
        let life = lives.clone();
        let told = manager.ready("serves\nat 1", move || life.load(Ordering::SeqCst));
        assert_eq!(next(), "READY=1\nSTATUS=serves at 1");
        assert_eq!([next(), next()], ["WATCHDOG=1", "WATCHDOG=1"]);
        lives.store(false, Ordering::SeqCst);
        heard.set_read_timeout(Some(says)).unwrap();
        let mut buffer = [0; 256];
        // One may have been on its way.
        while heard.recv(&mut buffer).is_ok() {}
        told.stopping("SIGTERM");
        assert_eq!(next(), "STOPPING=1\nSTATUS=ends: SIGTERM");
        assert!(ServiceManager::at("@asterism-nobody-listens", None).is_some(), "abstract names are names, too");
    }
}
