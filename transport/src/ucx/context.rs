//! UCX's context: which transports and interfaces it uses. Checks what can be checked before anything is sent.

pub(crate) mod call_gate;
pub(crate) mod found;

use std::{
    ffi::{CStr, CString},
    fs, ptr,
};

use ucx_rs::{status_string, sys};

use super::{UcxConfig, context::call_gate::CallGate};
use crate::TransportError;

/// Names that UCX knows for transports. It takes others without a word as long as one of the list is usable.
const UCX_TRANSPORTS: &[&str] = &[
    "all",
    "self",
    "tcp",
    "shm",
    "sm",
    "mm",
    "posix",
    "sysv",
    "cma",
    "xpmem",
    "knem",
    "ib",
    "rc",
    "rc_v",
    "rc_x",
    "rc_verbs",
    "rc_mlx5",
    "ud",
    "ud_v",
    "ud_x",
    "ud_verbs",
    "ud_mlx5",
    "dc",
    "dc_x",
    "dc_mlx5",
    "rdmacm",
    "srd",
    "cuda",
    "cuda_copy",
    "cuda_ipc",
    "gdr_copy",
    "gdrcopy",
    "rocm",
];
/// Those of them that register memory with a device.
const REGISTERING: &[&str] = &["ib", "rc", "ud", "dc", "srd"];
/// Memory that such a device needs to be allowed to lock.
const LOCKED_BYTES: u64 = 64 << 20;

/// What UCX lays its shared memory out by. It takes a peer's for its own without asking, so the environment has no say: a
/// sender would write past what the receiver has.
const LAYOUT: &[(&str, &str)] = &[
    // Long bodies go in pieces of this size, each written while the one before is read.
    ("MM_SEG_SIZE", "8448"),
    ("MM_FIFO_SIZE", "256"),
    // A part of a payload fits, with the longest header of ours and what UCX says before it: it is written straight into the queue.
    ("MM_FIFO_ELEM_SIZE", "8640"),
    // Of a /dev/shm that fills up UCX would else take other memory for it, which nobody shares, and end the process (SIGSEGV).
    ("MM_ALLOC", "md"),
];

/// What UCX is told unless the configuration says otherwise.
const SETTINGS: &[(&str, &str)] = &[
    // What goes wrong is reported as an error of the link; nothing is to be printed into an operator's terminal.
    ("LOG_LEVEL", "fatal"),
    // What is registered is not kept, which only hooks into the allocator would make safe.
    ("RCACHE_ENABLE", "n"),
    // A killed peer is noticed in shared memory too.
    ("MM_ERROR_HANDLING", "y"),
    // A frame of 16 KiB with its meta goes in one piece rather than three, and bulk twice as fast. From 64 KiB on UCX would
    // cut lengths off.
    ("TCP_TX_SEG_SIZE", "60k"),
    ("TCP_RX_SEG_SIZE", "60k"),
];

/// What UCX's own constructors are told unless the environment says otherwise: they would put hooks into the C library's memory
/// calls, which nothing here needs, and take 0.4 s for it, whatever the program is then asked to do; and they would take SIGHUP
/// from the program, which then outlived its terminal.
const AT_LOAD: &[(&str, &str)] = &[("UCX_MEM_EVENTS", "n"), ("UCX_DEBUG_SIGNO", "0")];

/// Runs as the program is loaded, before UCX's own constructors. A UCX that is linked dynamically is loaded earlier and only the
/// environment tells it.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static BEFORE_UCX: extern "C" fn() = settle_constructors;

extern "C" fn settle_constructors() {
    for (name, value) in AT_LOAD {
        if std::env::var_os(name).is_none() {
            // SAFETY: constructors run one after another, before there is a second thread.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

pub(super) fn failed(cause: impl Into<String>, remedy: impl Into<String>) -> TransportError {
    TransportError::Ucx { cause: cause.into(), remedy: remedy.into() }
}

/// The version of the library in use.
pub(super) fn version() -> String {
    // SAFETY: it returns a static string.
    unsafe { CStr::from_ptr(sys::ucp_get_version_string()) }.to_string_lossy().into_owned()
}

/// A configured UCX library.
pub(super) struct Context {
    pub raw: sys::ucp_context_h,
    pub call_gate: CallGate,
}

// SAFETY: the context is only read after its creation, and UCX locks what workers share in it (`mt_workers_shared`).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub fn new(config: &UcxConfig) -> Result<Self, TransportError> {
        check_transports(config)?;
        check_interfaces(&config.interfaces)?;
        let settings = UcxSettings::read(config)?;
        let params = sys::ucp_params {
            field_mask: u64::from(
                sys::ucp_params_field_UCP_PARAM_FIELD_FEATURES
                    | sys::ucp_params_field_UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            ),
            features: u64::from(sys::ucp_feature_UCP_FEATURE_AM | sys::ucp_feature_UCP_FEATURE_WAKEUP),
            mt_workers_shared: 1,
            ..Default::default()
        };
        let (mut raw, call_gate) = (ptr::null_mut(), CallGate::new());
        let pass = call_gate.enter();
        // SAFETY: both arguments live through the call, and `raw` is written only where it succeeds.
        let status =
            unsafe { sys::ucp_init_version(sys::UCP_API_MAJOR, sys::UCP_API_MINOR, &params, settings.raw, &mut raw) };
        drop(pass);
        if status == sys::ucs_status_t_UCS_OK {
            return Ok(Self { raw, call_gate });
        }
        let (transports, interfaces) = (config.asked_transports(), config.interfaces.join(","));
        if config.stays_within() {
            let remedy = "see that /dev/shm has room, some 16 MiB for each host";
            return Err(failed(
                format!("no memory can be shared by {transports:?}: {}", status_string(status)),
                remedy,
            ));
        }
        let over = if interfaces.is_empty() { "every interface".into() } else { interfaces };
        Err(failed(
            format!("no transport of {transports:?} works over {over}: {}", status_string(status)),
            "name transports and interfaces that this host has (`tcp`, `shm`), and see that the interfaces are up",
        ))
    }

    /// The transports that UCX found, with their devices.
    pub fn found(&self) -> Vec<String> {
        let _pass = self.call_gate.enter();
        // SAFETY: the context lives.
        found::resources(&unsafe { found::print(self.raw) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _pass = self.call_gate.enter();
        // SAFETY: the workers hold the context, so none is left.
        unsafe { sys::ucp_cleanup(self.raw) };
    }
}

struct UcxSettings {
    raw: *mut sys::ucp_config_t,
}

impl UcxSettings {
    fn read(config: &UcxConfig) -> Result<Self, TransportError> {
        let mut raw = ptr::null_mut();
        // SAFETY: null names mean the environment's `UCX_` variables and no file.
        let status = unsafe { sys::ucp_config_read(ptr::null(), ptr::null(), &mut raw) };
        if status != sys::ucs_status_t_UCS_OK {
            let cause = format!("its settings cannot be read: {}", status_string(status));
            return Err(failed(cause, "look for a wrong UCX_ variable in the environment"));
        }
        let mut settings = Self { raw };
        let chosen = |name: &str| std::env::var_os(format!("UCX_{name}")).is_some();
        for (name, value) in SETTINGS.iter().filter(|(name, _)| !chosen(name)).chain(LAYOUT) {
            settings.set(name, value)?;
        }
        settings.set("KEEPALIVE_INTERVAL", &format!("{}us", config.keep_alive.as_micros()))?;
        if let Some(transports) = &config.transports {
            settings.set("TLS", transports)?;
        }
        if !config.interfaces.is_empty() {
            settings.set("NET_DEVICES", &config.interfaces.join(","))?;
        }
        config.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), TransportError> {
        let wrong = |cause: &str| failed(format!("UCX_{name}={value:?}: {cause}"), "give it a value that UCX knows");
        let name_text = CString::new(name).map_err(|_| wrong("a zero in the name"))?;
        let value_text = CString::new(value).map_err(|_| wrong("a zero in the value"))?;
        // SAFETY: the settings are not yet released and both strings live through the call, which copies them.
        let status = unsafe { sys::ucp_config_modify(self.raw, name_text.as_ptr(), value_text.as_ptr()) };
        if status == sys::ucs_status_t_UCS_OK { Ok(()) } else { Err(wrong(status_string(status))) }
    }
}

impl Drop for UcxSettings {
    fn drop(&mut self) {
        // SAFETY: read by `ucp_config_read` and released once.
        unsafe { sys::ucp_config_release(self.raw) };
    }
}

/// Refuses a transport that UCX does not know, and one that this host's limits would have fail in use.
fn check_transports(config: &UcxConfig) -> Result<(), TransportError> {
    let asked = config.asked_transports();
    let names = asked.trim_start_matches('^').split(',').map(|name| name.trim().trim_start_matches('\\'));
    for name in names {
        let name = name.split(':').next().unwrap_or_default();
        if !UCX_TRANSPORTS.contains(&name) {
            let cause = format!("{name:?} of UCX_TLS={asked:?} is no transport");
            return Err(failed(cause, format!("use some of {}", UCX_TRANSPORTS.join(", "))));
        }
        let registers = REGISTERING.iter().any(|kind| name == *kind || name.starts_with(&format!("{kind}_")));
        if registers && !asked.starts_with('^') {
            check_locked_memory(name, locked_memory())?;
        }
    }
    Ok(())
}

fn check_locked_memory(transport: &str, limit: Option<u64>) -> Result<(), TransportError> {
    match limit {
        Some(limit) if limit < LOCKED_BYTES => Err(failed(
            format!("transport {transport} needs {LOCKED_BYTES} bytes of locked memory, this process may lock {limit}"),
            "raise the limit (`ulimit -l unlimited`, `LimitMEMLOCK=infinity`) or use `tcp` and `shm`",
        )),
        _ => Ok(()),
    }
}

/// Bytes that this process may lock; none where there is no limit or none can be read.
fn locked_memory() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Refuses an interface that this host does not have.
fn check_interfaces(interfaces: &[String]) -> Result<(), TransportError> {
    let Ok(entries) = fs::read_dir("/sys/class/net") else { return Ok(()) };
    let mut known: Vec<_> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    known.sort();
    // `mlx5_0:1` is a port of an InfiniBand device, which is listed elsewhere.
    match interfaces.iter().find(|name| !name.contains(':') && !known.contains(name)) {
        Some(name) => Err(failed(
            format!("there is no network interface {name:?} on this host"),
            format!("use some of {}", known.join(", ")),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ucx::config::{shares_memory, stays_within};

    #[test]
    fn little_locked_memory_is_refused() {
        let error = check_locked_memory("rc", Some(8 << 20)).expect_err("that is too little");
        assert!(error.to_string().contains("this process may lock 8388608"), "{error}");
        check_locked_memory("rc", Some(LOCKED_BYTES)).expect("that is enough");
        check_locked_memory("rc", None).expect("there is no limit");
    }

    #[test]
    fn tcp_alone_shares_no_memory() {
        let sharing = ["all", "shm,tcp", "tcp, posix", "^tcp"];
        assert!(sharing.iter().all(|asked| shares_memory(asked)));
        assert!(!["tcp", "tcp,rc,cuda_copy"].iter().any(|asked| shares_memory(asked)));
    }

    #[test]
    fn memory_alone_stays_within_a_machine() {
        assert!(["posix", "shm", "self, posix"].iter().all(|asked| stays_within(asked)));
        assert!(!["all", "posix,tcp", "^tcp", "rc,posix"].iter().any(|asked| stays_within(asked)));
    }
}
