//! Bodies that the peer only announced: UCX brings them straight into the buffers of a frame.

use std::{ffi::c_void, sync::Arc};

use ucx_rs::{decode_status_ptr, status_string, sys};

use super::{Worker, announced::AnnouncedBody};
use crate::{
    Meta,
    frame::{buffers::Buffer, codec::Lengths},
};

/// Where the body of a frame goes: memory with room for what is to come, and how long each part will be.
pub(crate) struct ReceiveTarget {
    pub meta: Meta,
    /// None where there is no payload.
    pub payload: Option<Buffer>,
    pub lengths: Lengths,
}

/// What becomes of a fetch: the filled buffers, or UCX's words.
pub(crate) type Fetched = Box<dyn FnOnce(Result<ReceiveTarget, &'static str>) + Send>;

struct Fetch {
    parts: [sys::ucp_dt_iov; 2],
    landing: ReceiveTarget,
    fetched: Fetched,
    worker: Arc<Worker>,
}

impl AnnouncedBody<'_> {
    /// Brings the body. `fetched` may run before this returns, or much later from whoever drives the worker.
    pub fn fetch(self, worker: &Arc<Worker>, mut landing: ReceiveTarget, fetched: Fetched) {
        let Lengths { payload, .. } = landing.lengths;
        // A meta that came before is not in the body.
        let meta = landing.lengths.meta - landing.meta.len();
        assert_eq!(meta + payload, self.length, "the landing fits the body");
        landing.meta.reserve(meta);
        let rest = landing.payload.as_mut().map_or(&mut [][..], |buffer| buffer.memory().spare_capacity_mut());
        assert!(rest.len() >= payload, "the landing has room");
        let parts = [
            sys::ucp_dt_iov { buffer: landing.meta.as_mut_ptr().cast(), length: meta },
            sys::ucp_dt_iov { buffer: rest.as_mut_ptr().cast(), length: payload },
        ];
        let fetch = Box::into_raw(Box::new(Fetch { parts, landing, fetched, worker: worker.clone() }));
        let callback = sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_CALLBACK
            | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_USER_DATA
            | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_DATATYPE;
        let mut param = sys::ucp_request_param_t {
            op_attr_mask: callback,
            cb: sys::ucp_request_param_t__bindgen_ty_1 { recv_am: Some(done) },
            user_data: fetch.cast(),
            ..Default::default()
        };
        // SAFETY: the operation lives until its completion has run, and `parts` does not move with it being boxed.
        let (buffer, count, datatype) = unsafe { buffers(&raw const (*fetch).parts) };
        param.datatype = datatype;
        // SAFETY: the descriptor is valid as the handler runs, the buffers have room for all of the body and live until the
        // completion, and UCX owns the descriptor from here on, which is why `self` is consumed.
        let status =
            unsafe { sys::ucp_am_recv_data_nbx(worker.raw, self.descriptor, buffer.cast_mut(), count, &param) };
        match decode_status_ptr(status) {
            Ok(Some(_)) => {}
            // SAFETY: without a request no callback runs, so the operation is still ours.
            Ok(None) => unsafe { complete(fetch, sys::ucs_status_t_UCS_OK, None) },
            // SAFETY: as above.
            Err(status) => unsafe { complete(fetch, status, None) },
        }
    }
}

/// The two parts of a body as UCX takes them: at once where one is empty, so that short messages stay on the short path.
///
/// # Safety
/// `parts` must be valid for reads.
pub(crate) unsafe fn buffers(parts: *const [sys::ucp_dt_iov; 2]) -> (*const c_void, usize, sys::ucp_datatype_t) {
    // One byte an element.
    let bytes = u64::from(sys::ucp_dt_type_UCP_DATATYPE_CONTIG) | 1 << sys::ucp_dt_type_UCP_DATATYPE_SHIFT;
    // SAFETY: the caller's promise.
    let [first, second] = unsafe { *parts };
    match (first.length, second.length) {
        (0, length) => (second.buffer.cast_const(), length, bytes),
        (length, 0) => (first.buffer.cast_const(), length, bytes),
        _ => (parts.cast(), 2, u64::from(sys::ucp_dt_type_UCP_DATATYPE_IOV)),
    }
}

/// # Safety
/// `fetch` must come from `Box::into_raw` and be completed once.
unsafe fn complete(fetch: *mut Fetch, status: sys::ucs_status_t, length: Option<usize>) {
    // SAFETY: the caller's promise.
    let Fetch { mut landing, fetched, worker, .. } = *unsafe { Box::from_raw(fetch) };
    let Lengths { meta, payload } = landing.lengths;
    let expected = meta - landing.meta.len() + payload;
    if status != sys::ucs_status_t_UCS_OK {
        fetched(Err(status_string(status)));
    } else if length.is_some_and(|length| length != expected) {
        fetched(Err("the body has another length than it was announced with"));
    } else {
        // SAFETY: the operation succeeded, so UCX has written that many bytes into the room reserved for them.
        unsafe {
            landing.meta.set_len(meta);
            landing.payload.iter_mut().for_each(|buffer| buffer.memory().set_len(payload));
        }
        fetched(Ok(landing));
    }
    worker.deliver();
}

/// UCX's callback for fetches.
unsafe extern "C" fn done(request: *mut c_void, status: sys::ucs_status_t, length: usize, fetch: *mut c_void) {
    // SAFETY: the request is complete and freed once.
    unsafe { sys::ucp_request_free(request) };
    // SAFETY: given to UCX by `fetch`, which leaves it to this callback.
    unsafe { complete(fetch.cast(), status, Some(length)) };
}
