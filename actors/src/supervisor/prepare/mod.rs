//! From a request to a prepared job: template, tokens, plan. Slow enough to run off the event loop. Files are read where a
//! front is made, of paths in the cluster file; preparing reads none.

mod alone;
mod append;
mod conversation;
mod limits;
mod preview;
mod prompt;
mod rope;
mod session;

pub use conversation::is_continued;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use asterism_models::{
    ChatTemplate, Checkpoint, FrontDigest, HeadsFiles, ModelConfig, ModelError, QuerySeparator, Render, Sampling,
    TemplateDate, TemplateSource, Tokenizer, Written, check_retaining_heads,
};
use asterism_plan::{Carried, Method, MethodConfig, Plan, PlanError, PlanRequest, Span};
use asterism_transport::MAX_META_BYTES;

use crate::{
    api::{JobRequest, JobTrace, PlacementPolicy, Prompt, Reuse, SessionRequest, bounds},
    error::JobError,
    messages::{TokenChoice, TokenShaping},
    payload::{MOST_PIECES, PIECE_BYTES},
    supervisor::{
        config::{ContextHosts, MODEL_LABEL},
        tables::{
            job::{PreparedJob, Question, Source},
            prepared::{
                KV_BLOCK, PreparedContext, asked_session::AskedSession, refresh_choice::RefreshChoice,
                salt_digest::SaltDigest,
            },
        },
    },
};

/// The parts of a model that the supervisor needs: no weights.
pub struct ModelFront {
    /// What requests call it.
    pub name: String,
    /// What its hosts and contexts are labelled with: its name in the cluster file, or nothing where it has none there.
    pub label: String,
    /// Its checkpoint's own name.
    pub checkpoint: String,
    /// Shape and limits.
    pub config: ModelConfig,
    /// What tells its configuration and tokenizer from others.
    pub digest: FrontDigest,
    /// Most tokens of context, query and answer together.
    pub max_tokens: usize,
    /// What of the model that comes from, in words that follow the number; empty where it is the usual.
    pub bound: &'static str,
    /// What stands between context and query of a request that does not say.
    pub query_separator: QuerySeparator,
    /// The date that the chat template is told where a request does not say; none: that of each request.
    pub template_date: Option<TemplateDate>,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    /// Names of the retaining heads that hosts have.
    heads: BTreeSet<String>,
}

impl ModelFront {
    /// Reads what it needs of a checkpoint. `max_context_tokens` lowers the model's own limit; `renderer` makes what renders
    /// of its chat template, such as [`TemplateSource::in_process`].
    pub fn load(
        checkpoint: &Checkpoint,
        max_context_tokens: Option<usize>,
        renderer: impl FnOnce(TemplateSource) -> Box<dyn Render>,
    ) -> Result<Self, ModelError> {
        let config = checkpoint.config().clone();
        let own = config.max_position;
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        tokenizer.check_ids(&config)?;
        Ok(Self {
            name: checkpoint.name().to_string(),
            label: String::new(),
            checkpoint: checkpoint.name().to_string(),
            max_tokens: max_context_tokens.map_or(own, |limit| limit.min(own)),
            bound: match config.limiting_key() {
                "sliding_window" if max_context_tokens.is_none_or(|limit| limit >= own) => ", by its sliding_window",
                _ => "",
            },
            config,
            digest: checkpoint.front_digest(),
            query_separator: QuerySeparator::default(),
            template_date: None,
            template: ChatTemplate::from_checkpoint(checkpoint, &tokenizer, renderer)?,
            tokenizer,
            heads: BTreeSet::new(),
        })
    }

    /// Under the name that the cluster file has for it, if it has one.
    pub fn named(self, name: Option<&str>) -> Self {
        match name {
            Some(name) => Self { name: name.to_owned(), label: name.to_owned(), ..self },
            None => self,
        }
    }

    /// With retaining heads that requests may name. Reads their files once, so that hosts find them as they must be.
    pub fn with_heads(mut self, files: &HeadsFiles) -> Result<Self, ModelError> {
        files.values().try_for_each(|path| check_retaining_heads(path, &self.config))?;
        self.heads = files.keys().cloned().collect();
        Ok(self)
    }

    /// With another separator than a blank line.
    pub fn with_separator(self, query_separator: QuerySeparator) -> Self {
        Self { query_separator, ..self }
    }

    /// With a date that the chat template is told where a request does not say.
    pub fn with_template_date(self, template_date: Option<TemplateDate>) -> Self {
        Self { template_date, ..self }
    }

    /// The date that the chat template is told: what a request asks for, the cluster's, or else now, in time since 1970.
    pub fn date(&self, asked: Option<TemplateDate>, now: Duration) -> TemplateDate {
        let now = || i64::try_from(now.as_secs()).ok().and_then(TemplateDate::from_unix);
        asked.or(self.template_date).or_else(now).unwrap_or_default()
    }

    /// Most bytes of text that can be a context or query here.
    pub fn most_text_bytes(&self) -> usize {
        self.tokenizer.most_bytes(self.max_tokens)
    }

    /// The bytes that a token stands for; none of one that the model does not have.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.bytes(id).unwrap_or_default()
    }

    /// The chat template has a place for tools.
    pub fn takes_tools(&self) -> bool {
        self.template.takes_tools()
    }

    /// The chat template reads this variable, of those that requests have a field for.
    pub fn template_reads(&self, variable: &str) -> bool {
        self.template.reads(variable)
    }

    /// Tokens of a text, without specials.
    pub fn count_tokens(&self, text: &str) -> Result<usize, ModelError> {
        Ok(self.tokenizer.encode(text)?.len())
    }

    /// Tokenises and plans a request for `hosts` context hosts; one that asks a session, for that session's context.
    pub fn prepare(
        &self,
        mut request: JobRequest,
        default_method: &MethodConfig,
        hosts: &ContextHosts,
        session: Option<&AskedSession>,
    ) -> Result<PreparedJob, JobError> {
        let limits = self.check(&request)?;
        let query = std::mem::replace(&mut request.query, Prompt::Tokens(Vec::new()));
        if request.prompt_logprobs {
            return self.prepare_alone((self.whole_ids(query)?, request), &limits, hosts);
        }
        let date = session.map_or(request.template_date, |session| session.template_date);
        let date = date.or(self.template_date).unwrap_or_default();
        let separator = request.query_separator.clone();
        let mut asked = None;
        let (source, query_ids, context_tokens, refresh_order) =
            match (request.context.take(), request.session.take(), session) {
                (None, Some(name), Some(session)) => {
                    let separator = separator.unwrap_or(session.query_separator.clone());
                    let (query, text) = self.question(session, query, &separator)?;
                    asked = text;
                    self.check_rope(&session.plan, query.len())?;
                    let refresh_order = session.refresh_order(&query);
                    (Source::Session(name), query, session.plan.context_tokens, refresh_order)
                }
                (context, _, _) => {
                    let context = context.unwrap_or(Prompt::Text(String::new()));
                    let separator = separator.unwrap_or_else(|| self.separator_after(&context));
                    let template = request.chat_template.then_some(date);
                    let is_rendered = self.template.is_chat() && context.text().is_some();
                    let (context, query) = self.prompt((context, query), &separator, template)?;
                    if context.is_empty() && query.len() == 1 {
                        return self.prepare_alone((query, request), &limits, hosts);
                    }
                    let method = (request.method.as_ref(), default_method, request.allow_idle_hosts);
                    let most = (context.len(), query.len(), limits.max_tokens);
                    self.check_length(most)?;
                    let mut prepared = self.plan((&context, &query), (request.reuse, method), hosts)?;
                    prepared.placement = self.placed(request.placement);
                    prepared.key = request.labels.get(bounds::KEY).cloned();
                    prepared.cache_salt = request.cache_salt.map(|salt| Box::new(SaltDigest::of(&salt)));
                    prepared.background = bounds::is_background(&request.labels);
                    prepared.template_date = template.filter(|_| is_rendered);
                    // Its context has no number yet.
                    let refresh = prepared.plan.refresh(&context, &query);
                    let refresh_order = refresh.map(|refresh| Box::new(RefreshChoice { context: 0, refresh }));
                    (Source::Context(prepared.identified()), query, context.len(), refresh_order)
                }
            };
        self.check_length((context_tokens, query_ids.len(), limits.max_tokens))?;
        let question = Question {
            query_ids,
            choice: choice(
                limits.max_tokens,
                (&request.sampling, request.stop),
                (request.ignore_eos, request.logprobs),
            ),
            timeout: limits.timeout,
            refresh_order,
            canary: false,
            text: asked,
            trace: request.trace.map(JobTrace::under),
        };
        let (id, labels) = (request.id.unwrap_or_default(), request.labels);
        Ok(PreparedJob { id, fingerprint: None, source, question, labels })
    }

    /// Tokenises and plans a session's context: the query is not known yet.
    pub fn prepare_session(
        &self,
        request: SessionRequest,
        default_method: &MethodConfig,
        hosts: &ContextHosts,
    ) -> Result<PreparedContext, JobError> {
        if request.context.is_blank() {
            return Err(empty_context());
        }
        bounds::name("name", &request.name)?;
        bounds::labels("placement", &request.placement.labels)?;
        request.ttl_s.map(|ttl| bounds::seconds("ttl_s", ttl)).transpose()?;
        let template = request.chat_template && request.context.text().is_some();
        let separator = request.query_separator.unwrap_or_else(|| self.separator_after(&request.context));
        let date = request.template_date.or(self.template_date).unwrap_or_default();
        let (context, text) = self.held(request.context, &separator, template.then_some(date))?;
        self.check_length((context.len(), 0, 1))?;
        let method = (request.method.as_ref(), default_method, request.allow_idle_hosts);
        let mut prepared = self.plan((&context, &[]), (Reuse::None, method), hosts)?;
        self.check_rope(&prepared.plan, 1)?;
        (prepared.chat_template, prepared.query_separator) = (template, separator);
        prepared.template_date = (template && self.template.is_chat()).then_some(date);
        prepared.text = text.map(Box::new);
        prepared.placement = self.placed(request.placement);
        Ok(prepared.identified())
    }
}

impl ModelFront {
    /// Where contexts of this model may go of what a request allows.
    fn placed(&self, mut policy: PlacementPolicy) -> PlacementPolicy {
        policy.labels.remove(MODEL_LABEL);
        let own = (!self.label.is_empty()).then(|| (MODEL_LABEL.to_owned(), self.label.clone()));
        policy.labels.extend(own);
        policy
    }
}

/// How tokens are chosen, within the request's limits.
fn choice(
    max_tokens: u32,
    (sampling, stop): (&Sampling, Vec<String>),
    (ignore_eos, logprobs): (bool, Option<u32>),
) -> TokenChoice {
    TokenChoice {
        max_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        seed: sampling.seed,
        shaping: TokenShaping::of(sampling),
        stop,
        ignore_eos,
        logprobs,
        scored: None,
    }
}

/// What hosts pass each other goes in a few frames of whatever size, what an order names in a part of one.
const CARRIED: Carried = Carried {
    parcel_bytes: MOST_PIECES as u64 * PIECE_BYTES as u64,
    order_spans: MAX_META_BYTES as u64 / 2 / size_of::<Span>() as u64,
};

impl ModelFront {
    fn check_length(&self, (context, query, generated): (usize, usize, u32)) -> Result<(), JobError> {
        let generated = generated as usize;
        if context.saturating_add(query).saturating_add(generated) > self.max_tokens {
            let (maximum, model, bound) = (self.max_tokens, self.name.clone(), self.bound);
            return Err(JobError::TooLong { context, query, generated, maximum, model, bound });
        }
        Ok(())
    }

    fn plan(
        &self,
        (context, query): (&[u32], &[u32]),
        (reuse, (asked, default, allow_idle_hosts)): (Reuse, (Option<&MethodConfig>, &MethodConfig, bool)),
        hosts: &ContextHosts,
    ) -> Result<PreparedContext, JobError> {
        let method = asked.unwrap_or(default);
        method.retaining_heads().map(|wanted| self.check_heads(wanted)).transpose()?;
        let shape = self.config.shape(hosts.kv);
        let request = PlanRequest {
            context,
            query,
            hosts: hosts.count,
            one_device: hosts.one_device,
            shape: &shape,
            speeds: hosts.speeds.as_ref(),
        };
        method.review(&request)?;
        let plan = match reuse {
            Reuse::None => method.plan(&request)?,
            Reuse::Exact => method.reusable_where_exact(&request)?,
            Reuse::Likely => method.reusable(&request)?,
        };
        plan.check(context.len())?;
        CARRIED.check(&plan, &shape)?;
        if asked.is_some() && !allow_idle_hosts && reuse != Reuse::Likely {
            refuse_idle_hosts(method, &plan)?;
        }
        self.check_ids("method", &plan.extra_ids)?;
        Ok(PreparedContext {
            dense_pairs: shape.computed_dense_pairs(context.len()),
            kv_bytes_per_token: shape.kv_bytes_per_token(),
            kv_block: KV_BLOCK,
            ids: plan.numbered_ids(context).into(),
            identities: Arc::default(),
            method: Box::new(method.clone()),
            hosts: hosts.count,
            plan: Arc::new(plan),
            chat_template: false,
            query_separator: QuerySeparator::NONE,
            template_date: None,
            text: None,
            placement: PlacementPolicy::default(),
            key: None,
            cache_salt: None,
            background: false,
        })
    }

    /// What separates the questions about `context` by default: token ids are taken as they are.
    fn separator_after(&self, context: &Prompt) -> QuerySeparator {
        match context {
            Prompt::Tokens(_) => QuerySeparator::NONE,
            _ => self.query_separator.clone(),
        }
    }

    fn encode(&self, param: &'static str, prompt: Prompt) -> Result<Vec<u32>, JobError> {
        match prompt {
            Prompt::Text(text) => self.encode(param, Written::from(text).into()),
            Prompt::Written(written) => {
                let ids = self.tokenizer.encode_most(&written, self.max_tokens);
                ids.map_err(|error| self.too_large(param, error))
            }
            Prompt::Tokens(ids) if ids.len() > self.max_tokens => {
                Err(self.too_large(param, ModelError::TooManyTokens { most: self.max_tokens }))
            }
            Prompt::Tokens(ids) => self.check_ids(param, &ids).map(|()| ids),
        }
    }

    fn check_ids<'a>(&self, param: &'static str, ids: impl IntoIterator<Item = &'a u32>) -> Result<(), JobError> {
        let vocab = self.config.vocab;
        match ids.into_iter().find(|&&id| id as usize >= vocab) {
            Some(id) => {
                let message = format!("{param} has token id {id}; {} has ids below {vocab}", self.name);
                Err(JobError::Invalid { param, message })
            }
            None => Ok(()),
        }
    }

    /// Refuses by its bytes a text that cannot fit, before its template is rendered.
    fn check_bytes(&self, param: &'static str, prompt: &Prompt) -> Result<(), JobError> {
        let most = self.most_text_bytes();
        match prompt.text().map_or(0, str::len) {
            bytes if bytes > most => Err(self.too_large(param, self.tokenizer.too_many_bytes(bytes, self.max_tokens))),
            _ => Ok(()),
        }
    }

    fn too_large(&self, param: &'static str, cause: ModelError) -> JobError {
        match cause.code() {
            "context_too_long" => {
                let (maximum, model, bound) = (self.max_tokens, self.name.clone(), self.bound);
                JobError::TooLarge { param, cause: Box::new(cause), maximum, model, bound }
            }
            _ => cause.into(),
        }
    }

    fn check_heads(&self, wanted: &str) -> Result<(), JobError> {
        if self.heads.contains(wanted) {
            return Ok(());
        }
        let known = match self.heads.is_empty() {
            true => "the cluster file names none, see [models.heads.NAME]".to_string(),
            false => format!("known are {}", self.heads.iter().cloned().collect::<Vec<_>>().join(", ")),
        };
        let message = format!("no retaining heads are called '{}'; {known}", bounds::shown(wanted));
        Err(JobError::Invalid { param: "method", message })
    }
}

/// A block size that somebody typed for this very job and that leaves hosts without work was not meant.
fn refuse_idle_hosts(method: &MethodConfig, plan: &Plan) -> Result<(), PlanError> {
    let (tokens, idle, hosts) = (plan.context_tokens, plan.idle_hosts(), plan.hosts);
    match method.block_tokens() {
        Some(block) if idle > 0 => {
            let most = tokens.div_ceil(hosts);
            let advice = format!(
                "give a block of at most {most} tokens, or leave it out, or allow idle hosts (`allow_idle_hosts`)"
            );
            Err(PlanError::IdleHosts { tokens, block, idle, hosts, advice })
        }
        _ => Ok(()),
    }
}

fn invalid(param: &'static str, message: &str) -> JobError {
    JobError::Invalid { param, message: message.to_string() }
}

fn empty_context() -> JobError {
    invalid("context", "the context is empty; give a document with --context FILE")
}

#[cfg(test)]
mod tests;
