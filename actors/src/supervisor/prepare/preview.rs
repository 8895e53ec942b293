//! What a request would come to, before anything is asked of a cluster.

use std::sync::Arc;

use asterism_kernels::{DType, KvType};
use asterism_models::{ModelError, QuerySeparator};
use asterism_plan::{Alternative, MethodConfig, Plan, PlanRequest, methods::DenseConfig};

use super::{ModelFront, invalid};
use crate::{
    api::{JobRequest, Prompt},
    error::JobError,
    supervisor::{
        config::ContextHosts,
        tables::job::{PreparedJob, Source},
    },
};

/// Where a plan does not matter.
const ONE_HOST: ContextHosts =
    ContextHosts { count: 1, one_device: true, kv: KvType::computed(DType::F32), speeds: None };

impl ModelFront {
    /// What a request over a context of its own comes to: its plan and how many tokens its query has.
    pub fn preview(
        &self,
        request: JobRequest,
        default_method: &MethodConfig,
        hosts: &ContextHosts,
    ) -> Result<(Plan, usize), JobError> {
        let PreparedJob { source, question, .. } = self.prepare(request, default_method, hosts, None)?;
        match source {
            Source::Context(prepared) => Ok((Arc::unwrap_or_clone(prepared.plan), question.query_ids.len())),
            Source::Session(_) => Err(invalid("session", "a session's context is planned already")),
        }
    }

    /// The ids of a request over a context of its own: the context's, and the query's.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare).
    pub fn ids(&self, request: JobRequest) -> Result<(Arc<[u32]>, Vec<u32>), JobError> {
        let (dense, limits) = (MethodConfig::Dense(DenseConfig {}), ONE_HOST);
        let PreparedJob { source, question, .. } =
            self.prepare(JobRequest { method: None, ..request }, &dense, &limits, None)?;
        match source {
            Source::Context(prepared) => Ok((prepared.ids, question.query_ids)),
            Source::Session(_) => Err(invalid("session", "a session's context is planned already")),
        }
    }

    /// Text of generated `ids`, without special tokens.
    ///
    /// # Errors
    /// When the tokenizer has no text for them.
    pub fn text(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.tokenizer.decode_plain(ids)
    }

    /// The plans between which `auto` chooses for a request over a context of its own, or for a session of that context.
    ///
    /// # Errors
    /// When another method is asked for, or there is no plan.
    pub fn alternatives(
        &self,
        request: JobRequest,
        default_method: &MethodConfig,
        (hosts, as_session): (&ContextHosts, bool),
    ) -> Result<Vec<Alternative>, JobError> {
        let MethodConfig::Auto(auto) = request.method.as_ref().unwrap_or(default_method) else {
            return Err(invalid("method", "only auto looks at alternatives; ask for it, or for no method"));
        };
        let context = request.context.unwrap_or(Prompt::Text(String::new()));
        let (context, query) = self.prompt((context, request.query), &QuerySeparator::NONE, None)?;
        let shape = self.config.shape(hosts.kv);
        Ok(auto.alternatives(&PlanRequest {
            context: &context,
            query: if as_session { &[] } else { &query },
            hosts: hosts.count,
            one_device: hosts.one_device,
            shape: &shape,
            speeds: hosts.speeds.as_ref(),
        })?)
    }
}
