//! UCX's worker: what arrives, and the work that it does only when called. Any thread may call it.

pub(crate) mod announced;
pub(crate) mod drive;
pub(crate) mod fetch;

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
    ptr, slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;
use ucx_rs::{status_string, sys};

use super::{
    context::{Context, call_gate::Pass, failed},
    worker::announced::AnnouncedBody,
};
use crate::{TransportError, signal::lock};

/// The number of asterism's active messages.
pub(super) const MESSAGE: u32 = 1;

/// Takes what arrives. It is called with UCX's lock held: it must not wait for whoever may be calling UCX.
pub(super) trait Handler: Send + Sync + 'static {
    /// Says whether somebody may have waited for it.
    fn arrived(&self, header: &[u8], body: Arrival<'_>) -> bool;
}

/// What calls a worker and ends before it: it is closed once no call of it is under way.
pub(super) trait Retiring: Send + Sync {
    /// Closes it, unless a call of it is under way; says whether it could. It is called with nothing locked.
    fn close_if_idle(self: Arc<Self>) -> bool;
}

/// The body of a message.
pub(super) enum Arrival<'a> {
    /// It is here, for as long as the handler runs.
    Whole(&'a [u8]),
    /// It lies with the peer until it is fetched; dropped, it never comes.
    Announced(AnnouncedBody<'a>),
}

impl Arrival<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Announced(announced) => announced.length,
        }
    }
}

/// Whether sleeping is safe.
pub(super) enum Armed {
    /// The next event makes the descriptor readable.
    Ready,
    /// Something happened meanwhile.
    Busy,
}

/// What UCX's callback is given.
struct Receiving {
    handler: Box<dyn Handler>,
    delivered: AtomicBool,
}

pub(super) struct Worker {
    pub raw: sys::ucp_worker_h,
    event: RawFd,
    address: Vec<u8>,
    handler: *mut Receiving,
    /// Endpoints to be closed once nobody is within a call of theirs.
    retired: Mutex<Vec<Arc<dyn Retiring>>>,
    /// Whether there may be some: asked in every round, so without a lock.
    retiring: AtomicBool,
    /// Endpoints made and not yet closed.
    pub endpoints: AtomicUsize,
    nudge: Notify,
    /// Whether somebody looks for what comes.
    watched: AtomicBool,
    /// Whether looking before sleeping pays.
    spins: bool,
    /// Whether somebody drives it.
    driven: AtomicBool,
    winding: AtomicBool,
    /// Outlives the worker.
    context: Context,
}

/// Somebody looks, until it is dropped.
struct Watch<'a>(&'a AtomicBool);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: the worker is made for many threads, `handler` points to something that is Send and Sync and is never changed.
unsafe impl Send for Worker {}
// SAFETY: as above.
unsafe impl Sync for Worker {}

impl Worker {
    pub fn new(context: Context, handler: Box<dyn Handler>, spins: bool) -> Result<Arc<Self>, TransportError> {
        let params = sys::ucp_worker_params {
            field_mask: u64::from(sys::ucp_worker_params_field_UCP_WORKER_PARAM_FIELD_THREAD_MODE),
            thread_mode: sys::ucs_thread_mode_t_UCS_THREAD_MODE_MULTI,
            ..Default::default()
        };
        let mut raw = ptr::null_mut();
        let pass = context.call_gate.enter();
        // SAFETY: the context lives, and `raw` is written only where the call succeeds.
        let status = unsafe { sys::ucp_worker_create(context.raw, &params, &mut raw) };
        drop(pass);
        if status != sys::ucs_status_t_UCS_OK {
            return Err(refused("its worker cannot be made", status));
        }
        let handler = Box::into_raw(Box::new(Receiving { handler, delivered: AtomicBool::new(false) }));
        // From here on dropping it cleans up.
        let mut worker = Self {
            raw,
            event: -1,
            address: Vec::new(),
            handler,
            retired: Mutex::default(),
            retiring: AtomicBool::new(false),
            endpoints: AtomicUsize::new(0),
            nudge: Notify::new(),
            watched: AtomicBool::new(false),
            spins,
            driven: AtomicBool::new(false),
            winding: AtomicBool::new(false),
            context,
        };
        worker.look_up()?;
        worker.listen()?;
        Ok(Arc::new(worker))
    }

    fn look_up(&mut self) -> Result<(), TransportError> {
        let mut attributes = sys::ucp_worker_attr {
            field_mask: u64::from(
                sys::ucp_worker_attr_field_UCP_WORKER_ATTR_FIELD_ADDRESS
                    | sys::ucp_worker_attr_field_UCP_WORKER_ATTR_FIELD_THREAD_MODE
                    | sys::ucp_worker_attr_field_UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER,
            ),
            ..Default::default()
        };
        // SAFETY: the worker lives and the mask names the fields that are read below.
        let status = unsafe { sys::ucp_worker_query(self.raw, &mut attributes) };
        if status != sys::ucs_status_t_UCS_OK {
            return Err(refused("its worker has no address", status));
        }
        // SAFETY: the call above succeeded and gave that many bytes, which are ours until they are released.
        self.address =
            unsafe { slice::from_raw_parts(attributes.address.cast::<u8>(), attributes.address_length) }.to_vec();
        // SAFETY: released once, to the worker that gave it.
        unsafe { sys::ucp_worker_release_address(self.raw, attributes.address) };
        if attributes.thread_mode != sys::ucs_thread_mode_t_UCS_THREAD_MODE_MULTI {
            return Err(failed("it was built for a single thread", "use a UCX built with --enable-mt"));
        }
        if attributes.max_am_header < super::message::LONGEST_HEADER {
            let cause = format!("a message's header has room for {} bytes only", attributes.max_am_header);
            return Err(failed(cause, "use transports with a larger UCX segment size"));
        }
        let mut event: c_int = -1;
        // SAFETY: the context was made with the wake-up feature.
        let status = unsafe { sys::ucp_worker_get_efd(self.raw, &mut event) };
        if status != sys::ucs_status_t_UCS_OK {
            return Err(refused("none of its transports can wake a sleeping process", status));
        }
        self.event = event;
        Ok(())
    }

    fn listen(&self) -> Result<(), TransportError> {
        let params = sys::ucp_am_handler_param {
            field_mask: u64::from(
                sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ID
                    | sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                    | sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_CB
                    | sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ARG,
            ),
            id: MESSAGE,
            flags: sys::ucp_am_cb_flags_UCP_AM_FLAG_WHOLE_MSG,
            cb: Some(arrived),
            arg: self.handler.cast(),
        };
        // SAFETY: the argument is what the callback expects, and lives as long as the worker.
        let status = unsafe { sys::ucp_worker_set_am_recv_handler(self.raw, &params) };
        if status == sys::ucs_status_t_UCS_OK { Ok(()) } else { Err(refused("it takes no messages", status)) }
    }

    /// Where peers reach the worker, in UCX's own format.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// A descriptor that is readable when something happened.
    pub fn event(&self) -> io::Result<OwnedFd> {
        // SAFETY: UCX keeps its descriptor open as long as the worker lives, and a whole worker has one.
        unsafe { BorrowedFd::borrow_raw(self.event) }.try_clone_to_owned()
    }

    /// Has the end of the process wait for a call of UCX.
    pub fn enter(&self) -> Pass<'_> {
        self.context.call_gate.enter()
    }

    /// Does what there is to do; says whether there was anything at one of so many looks.
    pub fn progress(&self, looks: usize) -> bool {
        let Some(_watch) = self.watch() else { return false };
        let _pass = self.enter();
        // SAFETY: the worker lives, and its handler does not call this.
        (0..looks).any(|_| unsafe { sys::ucp_worker_progress(self.raw) } != 0)
    }

    /// Looks for what is about to come, for whoever would else wait to be woken: until something came, some six microseconds at
    /// most, and not where somebody else looks.
    pub fn look(&self) {
        const LOOKS: usize = 512;
        if !self.spins {
            return;
        }
        let Some(_watch) = self.watch() else { return };
        let _pass = self.enter();
        // SAFETY: the worker lives, and its handler does not call this.
        let _ = (0..LOOKS).any(|_| unsafe { sys::ucp_worker_progress(self.raw) } != 0 && self.has_delivered());
    }

    /// Allows looking, which many at once would only hinder each other in.
    fn watch(&self) -> Option<Watch<'_>> {
        (!self.watched.swap(true, Ordering::Acquire)).then_some(Watch(&self.watched))
    }

    /// Whether something arrived that may be waited for since this was asked last.
    pub fn has_delivered(&self) -> bool {
        // SAFETY: it lives as long as the worker, and only what may be shared is touched.
        unsafe { &(*self.handler).delivered }.swap(false, Ordering::Relaxed)
    }

    /// Notes that a body that was announced has arrived.
    pub(super) fn deliver(&self) {
        // SAFETY: as above.
        unsafe { &(*self.handler).delivered }.store(true, Ordering::Relaxed);
    }

    /// Has the next event make the descriptor readable.
    pub fn arm(&self) -> Armed {
        let _pass = self.enter();
        // SAFETY: the worker lives and its context has the wake-up feature.
        match unsafe { sys::ucp_worker_arm(self.raw) } {
            sys::ucs_status_t_UCS_OK => Armed::Ready,
            _ => Armed::Busy,
        }
    }

    /// Has whoever drives the worker look again.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Completes after a nudge.
    pub async fn nudged(&self) {
        self.nudge.notified().await;
    }

    pub(super) fn retire(&self, endpoint: Arc<dyn Retiring>) {
        lock(&self.retired).push(endpoint);
        self.retiring.store(true, Ordering::SeqCst);
        if self.driven.load(Ordering::SeqCst) {
            self.nudge();
        } else {
            self.wind_down();
        }
    }

    /// From now on somebody drives the worker, or nobody any more.
    pub fn set_driven(&self, driven: bool) {
        self.driven.store(driven, Ordering::SeqCst);
        if !driven {
            self.wind_down();
        }
    }

    /// Closes the retired endpoints that nobody is using. Not to be called from a handler.
    pub fn close_retired(&self) {
        // Asked without writing first, as it is asked all the time.
        if !self.retiring.load(Ordering::SeqCst) || !self.retiring.swap(false, Ordering::SeqCst) {
            return;
        }
        let retired = std::mem::take(&mut *lock(&self.retired));
        let in_use: Vec<_> = retired.into_iter().filter(|endpoint| !endpoint.clone().close_if_idle()).collect();
        if !in_use.is_empty() {
            lock(&self.retired).extend(in_use);
            self.retiring.store(true, Ordering::SeqCst);
            self.nudge();
        }
    }

    /// Closes what is retired where nobody drives the worker any more.
    fn wind_down(&self) {
        const ROUNDS: usize = 10_000;
        // It may end up here again from a callback of its own.
        if self.winding.swap(true, Ordering::SeqCst) {
            return;
        }
        for _ in 0..ROUNDS {
            self.close_retired();
            if !self.progress(1) && self.endpoints.load(Ordering::Acquire) == 0 {
                break;
            }
        }
        self.winding.store(false, Ordering::SeqCst);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let pass = self.enter();
        // SAFETY: endpoints and operations hold the worker, so none is left, and no call of it is under way.
        unsafe { sys::ucp_worker_destroy(self.raw) };
        drop(pass);
        // SAFETY: made by `Box::into_raw`, and the worker that used it is gone.
        drop(unsafe { Box::from_raw(self.handler) });
    }
}

fn refused(what: &str, status: sys::ucs_status_t) -> TransportError {
    let remedy = "see that the interfaces are up, and that /dev/shm and the limit of locked memory have room";
    failed(format!("{what}: {}", status_string(status)), remedy)
}

/// Has the first lines of a body come from the core that wrote them, while it is looked up where they go.
fn prefetch(data: *const c_void, length: usize) {
    const LINE: usize = 64;
    const LINES: usize = 16;
    #[cfg(target_arch = "x86_64")]
    for line in 0..length.div_ceil(LINE).min(LINES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.cast::<i8>().wrapping_add(line * LINE)) };
    }
}

/// UCX's callback for messages.
unsafe extern "C" fn arrived(
    handler: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const sys::ucp_am_recv_param_t,
) -> sys::ucs_status_t {
    // SAFETY: set by `listen`, and freed only after the worker.
    let Receiving { handler, delivered } = unsafe { &*handler.cast::<Receiving>() };
    // SAFETY: UCX gives valid parameters for the time of the call.
    let attributes = unsafe { (*param).recv_attr };
    let header = match header_length {
        0 => &[][..],
        // SAFETY: UCX gives that many bytes for the time of the call.
        length => unsafe { slice::from_raw_parts(header.cast(), length) },
    };
    prefetch(data, length);
    let body = match length {
        // What is fetched stays with UCX by the start of the fetch; the rest is refused by what this returns.
        _ if attributes & u64::from(sys::ucp_am_recv_attr_t_UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 => {
            Arrival::Announced(AnnouncedBody::new(data, length))
        }
        0 => Arrival::Whole(&[]),
        // SAFETY: without the flag above the data are here, for the time of the call.
        length => Arrival::Whole(unsafe { slice::from_raw_parts(data.cast_const().cast(), length) }),
    };
    if handler.arrived(header, body) {
        delivered.store(true, Ordering::Relaxed);
    }
    sys::ucs_status_t_UCS_OK
}
