//! Encodes what questions get anew, beside the thread that generates. Chooses nothing.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use asterism_kernels::Backend;
use asterism_models::{Decoder, EncodedShard, ModelError, encode_alone};
use asterism_plan::Input;

use super::background::{BackgroundWorker, PendingOrder};
use crate::messages::RefreshOrder;

/// Encodes such tokens.
pub type RefreshWorker<B> = BackgroundWorker<RefreshOrder, EncodedShard<B>>;

/// Fresh keys that are on their way.
pub type PendingRefresh<B> = PendingOrder<EncodedShard<B>>;

/// Starts the thread.
pub fn start<B: Backend>(decoder: Arc<Decoder<B>>) -> RefreshWorker<B> {
    BackgroundWorker::start(("refresh", 1), move |order, given_up| {
        encode(&decoder, order, given_up).map_err(|error| (error.code().to_owned(), error.to_string()))
    })
}

fn encode<B: Backend>(
    decoder: &Decoder<B>,
    refresh_order: RefreshOrder,
    given_up: &AtomicBool,
) -> Result<EncodedShard<B>, ModelError> {
    let RefreshOrder { shard, ids, .. } = refresh_order;
    let missing = ModelError::NoTokens { block: shard.block, start: shard.own.start, tokens: shard.own.tokens };
    let input = Input::in_order(shard.spans(), ids).ok_or(missing)?;
    let mut on = |_, _| !given_up.load(Ordering::Relaxed);
    if !on(0, 0) {
        return Err(ModelError::Cancelled);
    }
    let fresh = encode_alone(decoder, (&shard, &input), &mut on)?;
    decoder.backend().finish()?;
    Ok(fresh)
}
