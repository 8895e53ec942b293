//! What of a session the preparing of a question needs. Reads no state.

use std::sync::Arc;

use asterism_models::{QuerySeparator, TemplateDate};
use asterism_plan::{MethodConfig, Plan};

use crate::supervisor::{job::Anew, placement::PlacementPolicy};

/// A session as a question to it is prepared.
#[derive(Clone, Debug)]
pub struct AskedSession {
    /// Number of its context.
    pub context: u64,
    /// The plan of it.
    pub plan: Arc<Plan>,
    /// The ids of the tokens that the plan numbers.
    pub ids: Arc<[u32]>,
    /// The method that it was planned by.
    pub method: Box<MethodConfig>,
    /// The context hosts that it was planned for.
    pub hosts: usize,
    /// Which hosts it may go to.
    pub placement: PlacementPolicy,
    /// Whether its questions go through the chat template.
    pub chat_template: bool,
    /// What stands before those that name nothing else.
    pub query_separator: QuerySeparator,
    /// The date that its template is told, where one was applied.
    pub template_date: Option<TemplateDate>,
}

impl AskedSession {
    /// What of the context a question gets anew.
    pub fn anew(&self, query: &[u32]) -> Option<Box<Anew>> {
        let context = &self.ids[..self.plan.context_tokens];
        self.plan.refresh(context, query).map(|refresh| Box::new(Anew { context: self.context, refresh }))
    }
}
