//! What happens to a context host, and what its rules want done.

use asterism_plan::Input;

use crate::messages::{EncodeShards, Encoded, HostCommand, HostMessage};

/// What happens to a context host.
#[derive(Debug)]
pub enum ContextHostEvent {
    /// The supervisor wants something.
    Command(HostCommand),
    /// The encoder finished a layer.
    Layer {
        /// Number of the work.
        work: u64,
        /// Shard.
        block: u32,
        /// Layers done.
        layers: u32,
        /// Layers in all.
        of: u32,
    },
    /// The encoder is done: shards lie ready to be kept or discarded.
    Encoded {
        /// Number of the work.
        work: u64,
        /// Those it encoded together.
        encoded: Vec<Encoded>,
        /// Seconds of compute.
        used: f64,
    },
    /// The encoder stopped without a shard.
    Stopped {
        /// Number of the work.
        work: u64,
        /// Why, unless it was told to.
        failure: Option<Failure>,
        /// Seconds of compute.
        used: f64,
    },
    /// Time goes on: others may have taken memory of the device meanwhile.
    Beat,
}

/// Why nothing was encoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Another host could not be reached, or what failed is over by now: another attempt may succeed.
    pub peer_lost: bool,
    /// The device was full.
    pub crowded: bool,
    /// Stable code.
    pub code: String,
    /// What failed, where, and what to do.
    pub message: String,
}

/// What a context host wants done.
#[derive(Debug, PartialEq)]
pub enum ContextHostCommand {
    /// Encode these together; [`ContextHostEvent::Encoded`] or [`ContextHostEvent::Stopped`] follows for each.
    Encode(Vec<EncodeWork>),
    /// Fetch the shards of a work of who holds them; [`ContextHostEvent::Encoded`] or [`ContextHostEvent::Stopped`] follows.
    Fetch(EncodeWork),
    /// Stop encoding or fetching, where no other is encoded together with it; [`ContextHostEvent::Stopped`] or [`ContextHostEvent::Encoded`]
    /// follows.
    Stop {
        /// Number of the work.
        work: u64,
    },
    /// Keep the shards that a work encoded: queries over them are answered from now on.
    Keep {
        /// Number of the work.
        work: u64,
        /// Their context.
        context: u64,
    },
    /// Free the shards that a work encoded.
    Discard {
        /// Number of the work.
        work: u64,
    },
    /// Keep a shard for another context too.
    Share {
        /// Who has it.
        from: u64,
        /// Who has it from now on.
        context: u64,
        /// The shard.
        block: u32,
    },
    /// Lay a context's shard aside: nobody asks for it any more.
    LayIdle {
        /// The context.
        context: u64,
        /// The shard.
        block: u32,
        /// Its number.
        place: u64,
    },
    /// Keep an idle shard for a context.
    TakeUp {
        /// Its number.
        place: u64,
        /// The context.
        context: u64,
    },
    /// Free an idle shard.
    Evict {
        /// Its number.
        place: u64,
    },
    /// Parcels of this attempt are wanted, those of earlier ones are not.
    Expect {
        /// Context.
        context: u64,
        /// Attempt.
        attempt: u32,
    },
    /// Free the shards of a context.
    Free {
        /// Context.
        context: u64,
    },
    /// Free the shards of a context and what others sent for it.
    Forget {
        /// Context.
        context: u64,
    },
    /// Tell the supervisor.
    Report(HostMessage),
}

/// An order, or what is left of it, on its way to the encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodeWork {
    /// Its number.
    pub work: u64,
    /// Seconds of compute that earlier works of its context used.
    pub used: f64,
    /// What to encode.
    pub order: EncodeShards,
    /// What each of its shards reads.
    pub inputs: Vec<Input>,
}
