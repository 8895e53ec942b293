//! A context planned: what of it never changes, and what it weighs. Knows no host.

pub mod asked_session;
pub mod refresh_choice;
pub mod salt_digest;
pub mod text;

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use asterism_models::{QuerySeparator, ShardIdentity, TemplateDate, shard_identities};
use asterism_plan::{Exchange, MethodConfig, Plan, Refresh, Shard, Span};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    api::PlacementPolicy,
    messages::{BACKGROUND_TENANT, RefreshOrder},
    supervisor::{
        config::model_of,
        tables::prepared::{salt_digest::SaltDigest, text::SessionText},
    },
};

/// Bytes that a shard or a context takes beside its spans and ids, about.
const SHARD_OVERHEAD_BYTES: u64 = 256;
/// Tokens that CPUs allot memory for keys and values for at once.
pub const KV_BLOCK: usize = 128;

/// The key that asked for a context, if one did.
pub type TenantKey = Option<String>;

/// A key's number, as hosts know it: the same for all supervisors of one program. What it asks for in the background has another one.
pub fn tenant_number(key: &TenantKey, background: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    let number = key.as_ref().map_or(0, |key| {
        key.hash(&mut hasher);
        hasher.finish() & !BACKGROUND_TENANT
    });
    if background { number | BACKGROUND_TENANT } else { number }
}

fn is_false(is: &bool) -> bool {
    !is
}

/// A context planned, before hosts are chosen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreparedContext {
    /// The plan; copies share it.
    #[serde(serialize_with = "plan_to", deserialize_with = "plan_from")]
    pub plan: Arc<Plan>,
    /// The ids of the tokens that the plan numbers; copies share them. The journal has them apart, as bytes.
    #[serde(skip)]
    pub ids: Arc<[u32]>,
    /// The method that it was planned by, to plan for more tokens.
    pub method: Box<MethodConfig>,
    /// The context hosts that it was planned for, of which the plan may use fewer.
    pub hosts: usize,
    /// What its shards are, by which those that hosts hold are found; none where they are encoded only together.
    #[serde(skip)]
    pub identities: Arc<[ShardIdentity]>,
    /// Pairs that dense attention over the context computes in phase 1.
    pub dense_pairs: u64,
    /// Bytes of keys and values that a token keeps.
    pub kv_bytes_per_token: u64,
    /// Tokens that hosts have memory for at once: a shard takes that of whole blocks, however few it keeps.
    pub kv_block: usize,
    /// Whether its template was applied, so that its questions get theirs.
    pub chat_template: bool,
    /// What stands before its questions that name nothing else.
    pub query_separator: QuerySeparator,
    /// The date that its template was told, and is told for its questions, where one was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_date: Option<TemplateDate>,
    /// The end of its text, where it is a session's and has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Box<SessionText>>,
    /// Which hosts it may go to.
    pub placement: PlacementPolicy,
    /// The key that asked, if one did: contexts of each have their turns.
    pub key: TenantKey,
    /// What sets it apart from contexts of the same tokens that were asked for with another salt, or with none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<Box<SaltDigest>>,
    /// Whether nobody waits on a connection for what is asked about it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub background: bool,
}

impl PreparedContext {
    /// The label of its model.
    pub fn model(&self) -> &str {
        model_of(&self.placement.labels)
    }

    /// Whether a checksum is that of what a shard's pass is to read: as the plan has it, or alone.
    pub fn is_input(&self, block: usize, digest: u64) -> bool {
        let is = |shard: &Shard| shard.input(&*self.ids).is_ok_and(|input| shard.digest(&input) == digest);
        is(&self.plan.shards[block]) || is(&self.plan.alone(block))
    }

    /// What of it a question gets anew, as who generates is told.
    pub fn refresh_order(&self, Refresh { shard, hidden }: &Refresh) -> Option<Box<RefreshOrder>> {
        let ids = shard.input(&*self.ids).ok()?.ids;
        Some(Box::new(RefreshOrder { shard: shard.clone(), ids, hidden: hidden.clone() }))
    }

    /// The same with its shards' identities, within its scope: once its ids, its key and its salt are known.
    pub fn identified(mut self) -> Self {
        self.identities = shard_identities(&self.plan, &self.ids, self.scope().as_deref()).into();
        self
    }

    /// What contexts have in common that may share shards: the model, the key that asks, and the salt that it asks with. No two
    /// are one text, as no name has a zero byte.
    fn scope(&self) -> Option<String> {
        let key = self.key.as_deref();
        match (self.model(), &self.cache_salt) {
            ("", None) => key.map(str::to_owned),
            // The same tokens are other keys and values in another model.
            (model, None) => Some(format!("{model}\0{}", key.unwrap_or_default())),
            (model, Some(salt)) => Some(format!("{model}\0{}\0{salt}", key.unwrap_or_default())),
        }
    }

    /// Shards that another context has as well: encoded alone, from the same tokens.
    pub fn shared_with(&self, other: &Self) -> BTreeSet<usize> {
        let apart = [self, other].iter().all(|prepared| prepared.plan.exchange == Exchange::None);
        let context = self.plan.context_tokens.min(other.plan.context_tokens);
        let alike = self.ids.iter().zip(&*other.ids).take(context).take_while(|(one, other)| one == other).count();
        let both = self.plan.shards.iter().zip(&other.plan.shards).filter(|_| apart);
        let within = |shard: &Shard| shard.sources().all(|span| span.range().end <= alike as u64);
        both.filter(|(one, other)| one == other && within(one)).map(|(one, _)| one.block).collect()
    }

    /// Bytes that a shard takes.
    pub fn kv_bytes(&self, block: usize) -> u64 {
        let tokens = self.plan.shards[block].kept_tokens().next_multiple_of(self.kv_block.max(1));
        tokens as u64 * self.kv_bytes_per_token
    }

    /// Bytes that its plan and its ids take here.
    pub fn bytes(&self) -> u64 {
        let spans = |shard: &Shard| size_of::<Span>() as u64 * shard.prefix.len() as u64 + SHARD_OVERHEAD_BYTES;
        let text = self.text.as_ref().map_or(0, |text| text.bytes());
        self.plan.shards.iter().map(spans).sum::<u64>() + 4 * self.ids.len() as u64 + text + SHARD_OVERHEAD_BYTES
    }

    /// What of it never changes, counted once.
    pub fn weight(&self) -> Weight {
        let tokens: usize = self.plan.shards.iter().map(Shard::rows).sum();
        Weight {
            work: tokens.div_ceil(self.plan.hosts.max(1)) as u64,
            bytes: self.bytes(),
            kv_bytes: (0..self.plan.shards.len()).map(|block| self.kv_bytes(block)).sum(),
        }
    }
}

/// What a context weighs, whatever becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Tokens that a host runs through the model for it, about.
    pub work: u64,
    /// Bytes that its plan and its ids take here.
    pub bytes: u64,
    /// Bytes that all its shards take.
    pub kv_bytes: u64,
}

fn plan_to<S: Serializer>(plan: &Arc<Plan>, serializer: S) -> Result<S::Ok, S::Error> {
    plan.as_ref().serialize(serializer)
}

fn plan_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Plan>, D::Error> {
    Plan::deserialize(deserializer).map(Arc::new)
}
