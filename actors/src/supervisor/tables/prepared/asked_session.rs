//! What of a session the preparing of a question needs. Reads no state.

use std::sync::Arc;

use asterism_models::{QuerySeparator, TemplateDate};
use asterism_plan::{MethodConfig, Plan};

use crate::{
    api::PlacementPolicy,
    supervisor::{
        config::model_of,
        tables::prepared::{PreparedContext, refresh_choice::RefreshChoice, text::SessionText},
    },
};

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
    /// The end of its text, where it has one.
    pub text: Option<Box<SessionText>>,
    /// What stands before those that name nothing else.
    pub query_separator: QuerySeparator,
    /// The date that its template is told, where one was applied.
    pub template_date: Option<TemplateDate>,
}

impl AskedSession {
    /// The session of this context.
    pub fn of(context: u64, prepared: &PreparedContext) -> Self {
        Self {
            context,
            plan: prepared.plan.clone(),
            ids: prepared.ids.clone(),
            method: prepared.method.clone(),
            hosts: prepared.hosts,
            placement: prepared.placement.clone(),
            chat_template: prepared.chat_template,
            text: prepared.text.clone(),
            query_separator: prepared.query_separator.clone(),
            template_date: prepared.template_date,
        }
    }

    /// The label of its model.
    pub fn model(&self) -> &str {
        model_of(&self.placement.labels)
    }

    /// What of the context a question gets anew.
    pub fn refresh_order(&self, query: &[u32]) -> Option<Box<RefreshChoice>> {
        let context = &self.ids[..self.plan.context_tokens];
        self.plan.refresh(context, query).map(|refresh| Box::new(RefreshChoice { context: self.context, refresh }))
    }
}
