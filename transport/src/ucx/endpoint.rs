//! UCX's endpoint: one peer's worker, as seen from here. A message sent is held until UCX is done with it, whoever waits.

use std::{
    ffi::c_void,
    ops::Range,
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use ucx_rs::{decode_status_ptr, status_string, sys};

use super::{
    context::call_gate::Pass,
    message::{Header, PART},
    worker::{MESSAGE, Retiring, Worker, fetch::buffers},
};
use crate::{
    Meta,
    signal::{Signal, lock},
};

/// How the path to a peer broke, once it has.
#[derive(Default)]
pub(super) struct Failure {
    cause: Signal<Option<&'static str>>,
}

impl Failure {
    pub fn set(&self, cause: &'static str) {
        self.cause.set_once(cause);
    }

    pub async fn wait(&self) -> &'static str {
        self.cause.wait_for(Option::is_some).await.unwrap_or_default()
    }
}

/// An endpoint that stays open meanwhile.
pub(super) struct EndpointUse<'a> {
    endpoint: &'a Arc<UcxEndpoint>,
    _pass: Pass<'a>,
}

impl EndpointUse<'_> {
    /// Sends a message: `meta`, and so much of `payload`. What goes wrong later is told to the endpoint's [`Failure`]. It may be
    /// called by a handler.
    pub fn send(&self, header: &Header, meta: Meta, payload: &Bytes, part: Range<usize>) {
        if !(meta.is_empty() && self.endpoint.send_at_once(header, &payload[part.clone()])) {
            self.endpoint.post(header.clone(), meta, payload.slice(part));
        }
    }
}

impl Drop for EndpointUse<'_> {
    fn drop(&mut self) {
        self.endpoint.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One message, above the bytes of as many as a process can hold.
const MESSAGE_UNDER_WAY: u64 = 1 << 40;

/// Messages whose memory is kept.
const SENDINGS_KEPT: usize = 256;

pub(super) struct UcxEndpoint {
    raw: sys::ucp_ep_h,
    pub worker: Arc<Worker>,
    failure: Arc<Failure>,
    /// Calls of UCX under way with this endpoint.
    users: AtomicUsize,
    /// Messages that UCX is not done with, each as [`MESSAGE_UNDER_WAY`], and the bytes of their bodies.
    under_way: AtomicU64,
    /// Memory of messages that are out.
    #[expect(clippy::vec_box, reason = "UCX is given their addresses")]
    kept: Mutex<Vec<Box<Sending>>>,
    closed: AtomicBool,
}

// SAFETY: the handle is used as the worker is, by many threads; it is closed once, when no call is under way.
unsafe impl Send for UcxEndpoint {}
// SAFETY: as above.
unsafe impl Sync for UcxEndpoint {}

/// A message under way and all that UCX reads of it.
struct Sending {
    header: Header,
    meta: Meta,
    payload: Bytes,
    /// Point into the two above.
    parts: [sys::ucp_dt_iov; 2],
    /// None when it is under way no more.
    endpoint: Option<Arc<UcxEndpoint>>,
}

// SAFETY: the pointers of `parts` are used by UCX only, and only while the message is under way.
unsafe impl Send for Sending {}

impl Sending {
    /// What it counts as while it is under way.
    fn counted(&self) -> u64 {
        MESSAGE_UNDER_WAY + (self.meta.len() + self.payload.len()) as u64
    }

    /// Lets go of what was sent, and keeps the memory for another message.
    fn over(mut self: Box<Self>) {
        let counted = self.counted();
        self.meta = Meta::default();
        self.payload = Bytes::new();
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.under_way.fetch_sub(counted, Ordering::Relaxed);
            let mut kept = lock(&endpoint.kept);
            if kept.len() < SENDINGS_KEPT {
                kept.push(self);
            }
        }
    }
}

impl UcxEndpoint {
    /// An endpoint for the worker at `address`. UCX takes the address as it is: it must come from a peer that is trusted
    /// not to take this process down.
    pub fn new(worker: &Arc<Worker>, address: &[u8], failure: Arc<Failure>) -> Result<Arc<Self>, &'static str> {
        let arg = Arc::into_raw(failure.clone());
        let params = sys::ucp_ep_params {
            field_mask: u64::from(
                sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                    | sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                    | sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLER,
            ),
            address: address.as_ptr().cast(),
            err_mode: sys::ucp_err_handling_mode_t_UCP_ERR_HANDLING_MODE_PEER,
            err_handler: sys::ucp_err_handler { cb: Some(broke), arg: arg.cast_mut().cast() },
            ..Default::default()
        };
        let mut raw = ptr::null_mut();
        let _pass = worker.enter();
        // SAFETY: the worker lives, the address lives through the call, and `raw` is written only where it succeeds.
        let status = unsafe { sys::ucp_ep_create(worker.raw, &params, &mut raw) };
        if status != sys::ucs_status_t_UCS_OK {
            // SAFETY: there is no endpoint that could use it.
            drop(unsafe { Arc::from_raw(arg) });
            return Err(status_string(status));
        }
        worker.endpoints.fetch_add(1, Ordering::AcqRel);
        let (users, under_way) = (AtomicUsize::new(0), AtomicU64::new(0));
        let (worker, kept, closed) = (worker.clone(), Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(Self { raw, worker, failure, users, under_way, kept, closed }))
    }

    /// Messages that UCX is not done with.
    pub fn under_way(&self) -> usize {
        (self.under_way.load(Ordering::Relaxed) / MESSAGE_UNDER_WAY) as usize
    }

    /// Bytes of their bodies.
    pub fn bytes_under_way(&self) -> usize {
        (self.under_way.load(Ordering::Relaxed) % MESSAGE_UNDER_WAY) as usize
    }

    /// Lets it be used until the guard is dropped; nobody may once it is closed.
    pub fn enter(self: &Arc<Self>) -> Option<EndpointUse<'_>> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let using = EndpointUse { endpoint: self, _pass: self.worker.enter() };
        (!self.closed.load(Ordering::SeqCst)).then_some(using)
    }

    /// Sends a short message where UCX can write it straight into the peer's queue, and says whether it did.
    fn send_at_once(&self, header: &Header, body: &[u8]) -> bool {
        if body.len() > PART {
            return false;
        }
        let header = header.as_bytes();
        let param = sys::ucp_request_param_t {
            op_attr_mask: sys::ucp_op_attr_t_UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
            ..Default::default()
        };
        // SAFETY: the endpoint is open as `users` says; without a request UCX keeps nothing of what it is given.
        let status = unsafe {
            let (head, body, bytes) = (header.as_ptr().cast(), body.as_ptr().cast(), body.len());
            sys::ucp_am_send_nbx(self.raw, MESSAGE, head, header.len(), body, bytes, &param)
        };
        // What went wrong otherwise goes wrong again.
        matches!(decode_status_ptr(status), Ok(None))
    }

    fn post(self: &Arc<Self>, header: Header, meta: Meta, payload: Bytes) {
        let part = |bytes: &[u8]| sys::ucp_dt_iov { buffer: bytes.as_ptr().cast_mut().cast(), length: bytes.len() };
        // A part is not to be announced, whatever the environment has UCX announce.
        let eager = if payload.len() <= PART { sys::ucp_send_am_flags_UCP_AM_SEND_FLAG_EAGER } else { 0 };
        let parts = [part(&meta), part(&payload)];
        let next = Sending { header, meta, payload, parts, endpoint: Some(self.clone()) };
        self.under_way.fetch_add(next.counted(), Ordering::Relaxed);
        let sending = Box::into_raw(match lock(&self.kept).pop() {
            Some(mut kept) => {
                *kept = next;
                kept
            }
            None => Box::new(next),
        });
        // SAFETY: the operation lives until its completion has run; UCX only reads what the pointers below point to.
        let (header, header_length, (buffer, count, datatype)) = unsafe {
            let header = (*sending).header.as_bytes();
            (header.as_ptr(), header.len(), buffers(&raw const (*sending).parts))
        };
        let param = sys::ucp_request_param_t {
            op_attr_mask: sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_CALLBACK
                | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_USER_DATA
                | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_DATATYPE
                | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS,
            flags: eager,
            cb: sys::ucp_request_param_t__bindgen_ty_1 { send: Some(sent) },
            datatype,
            user_data: sending.cast(),
            ..Default::default()
        };
        // SAFETY: the endpoint is open as `users` says, and header and body live until the completion.
        let status =
            unsafe { sys::ucp_am_send_nbx(self.raw, MESSAGE, header.cast(), header_length, buffer, count, &param) };
        match decode_status_ptr(status) {
            // Somebody has to see it through.
            Ok(Some(_)) => self.worker.nudge(),
            // SAFETY: without a request no callback runs, so the operation is still ours.
            Ok(None) => unsafe { Box::from_raw(sending) }.over(),
            Err(status) => {
                // SAFETY: as above.
                unsafe { Box::from_raw(sending) }.over();
                self.failure.set(status_string(status));
            }
        }
    }

    /// Ends it, without a word to the peer, as soon as whoever drives the worker comes by. Nothing is sent any more.
    pub fn close(self: &Arc<Self>) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.worker.retire(self.clone());
        }
    }
}

impl Retiring for UcxEndpoint {
    fn close_if_idle(self: Arc<Self>) -> bool {
        if self.users.load(Ordering::SeqCst) != 0 {
            return false;
        }
        let param = sys::ucp_request_param_t {
            op_attr_mask: sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS
                | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_CALLBACK
                | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_USER_DATA,
            flags: sys::ucp_ep_close_flags_t_UCP_EP_CLOSE_FLAG_FORCE,
            cb: sys::ucp_request_param_t__bindgen_ty_1 { send: Some(closed) },
            user_data: Arc::into_raw(self.clone()).cast_mut().cast(),
            ..Default::default()
        };
        let _pass = self.worker.enter();
        // SAFETY: it is closed once, as it was retired once, and no call is under way nor will be, as `closed` is set.
        let status = unsafe { sys::ucp_ep_close_nbx(self.raw, &param) };
        if !matches!(decode_status_ptr(status), Ok(Some(_))) {
            // SAFETY: without a request no callback runs.
            unsafe { gone(Arc::as_ptr(&self)) };
        }
        true
    }
}

/// # Safety
/// `endpoint` must have been turned into a raw pointer for the closing that is now done.
unsafe fn gone(endpoint: *const UcxEndpoint) {
    // SAFETY: the caller's promise.
    let endpoint = unsafe { Arc::from_raw(endpoint) };
    // SAFETY: given to UCX by `new`; a closed endpoint reports nothing any more.
    drop(unsafe { Arc::from_raw(Arc::as_ptr(&endpoint.failure)) });
    endpoint.worker.endpoints.fetch_sub(1, Ordering::AcqRel);
    endpoint.worker.nudge();
}

/// UCX's callback for closed endpoints.
unsafe extern "C" fn closed(request: *mut c_void, _: sys::ucs_status_t, endpoint: *mut c_void) {
    // SAFETY: the request is complete and freed once.
    unsafe { sys::ucp_request_free(request) };
    // SAFETY: given to UCX by `close_if_idle`.
    unsafe { gone(endpoint.cast_const().cast()) };
}

/// UCX's callback for messages that are out.
unsafe extern "C" fn sent(request: *mut c_void, status: sys::ucs_status_t, sending: *mut c_void) {
    // SAFETY: the request is complete and freed once.
    unsafe { sys::ucp_request_free(request) };
    // SAFETY: given to UCX by `post`, which leaves it to this callback.
    let sending = unsafe { Box::from_raw(sending.cast::<Sending>()) };
    if let Some(endpoint) = sending.endpoint.as_ref().filter(|_| status != sys::ucs_status_t_UCS_OK) {
        endpoint.failure.set(status_string(status));
    }
    sending.over();
}

/// UCX's callback for peers that are gone.
unsafe extern "C" fn broke(failure: *mut c_void, _: sys::ucp_ep_h, status: sys::ucs_status_t) {
    // SAFETY: given to UCX by `new` and freed only once the endpoint is closed.
    let failure = unsafe { &*failure.cast_const().cast::<Failure>() };
    failure.set(status_string(status));
}
