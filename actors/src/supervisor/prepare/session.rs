//! What a session holds of its text, and what a question to it or more of it comes to. Plans nothing.

use asterism_models::{ChatTurn, Passage, QuerySeparator, RenderOptions, Speaker, TemplateDate, Written};

use super::{
    ModelFront, invalid,
    prompt::{self, WholePrompt},
};
use crate::{
    api::Prompt,
    error::JobError,
    supervisor::tables::prepared::{
        asked_session::AskedSession,
        text::{Continuation, SessionText},
    },
};

/// Text in place of a question that is not at hand.
const STAND_IN: &str = "x";

/// What a session holds, and the text behind it.
pub(super) type HeldSession = (Vec<u32>, Option<SessionText>);

impl ModelFront {
    /// What a session of a context holds: tokens that are the same whatever is asked. `template`: the chat template is applied to
    /// texts, and told this date.
    pub(super) fn held(
        &self,
        context: Prompt,
        separator: &QuerySeparator,
        template: Option<TemplateDate>,
    ) -> Result<HeldSession, JobError> {
        self.check_bytes("context", &context)?;
        if let Prompt::Tokens(_) = context {
            return Ok((self.encode("context", context)?, None));
        }
        let continuation = match (&context, template) {
            (Prompt::Text(_), Some(_)) if self.template.is_chat() => Continuation::Rendered,
            (_, Some(_)) => Continuation::Message,
            (_, None) => Continuation::Raw,
        };
        let WholePrompt { written, at, around } = self.whole((context, STAND_IN.into()), separator, template)?;
        let text = SessionText {
            rest: Passage::from(written),
            certain: 0,
            continuation,
            turns: Vec::new(),
            opened: String::new(),
        };
        let before = self.around(around).before;
        self.grown(&before, (text, before.len()), at)
    }

    /// What a session holds when its text ends at byte `at` of what `text` has from the border on, which comes behind the `certain`
    /// first of `ids`.
    fn grown(&self, ids: &[u32], (text, certain): (SessionText, usize), at: usize) -> Result<HeldSession, JobError> {
        let cut = self.tokenizer.cut(&text.rest, at, self.max_tokens);
        let cut = cut.map_err(|error| self.too_large("context", error))?;
        let had = ids.len() - certain;
        if !cut.ids.starts_with(&ids[certain..]) {
            return Err(JobError::SessionRewritten);
        }
        // The first token of all is held in any case, and whoever asks finds out whether it is still the first.
        let least = usize::from(ids.is_empty());
        let held = cut.held.max(had).max(least).min(cut.ids.len());
        let context = [&ids[..certain], &cut.ids[..held]].concat();
        self.check_ids("context", &context)?;
        if context.is_empty() {
            return Err(invalid("context", "the context has no tokens; give a longer text"));
        }
        let certain = certain + cut.certain;
        Ok((context, Some(SessionText { rest: cut.rest(text.rest.clone(), at), certain, ..text })))
    }

    /// The tokens of a question to a session, and its text with what separates it.
    pub(super) fn question(
        &self,
        session: &AskedSession,
        query: Prompt,
        separator: &QuerySeparator,
    ) -> Result<(Vec<u32>, Option<String>), JobError> {
        self.check_bytes("query", &query)?;
        let query = prompt::separated(query, separator);
        let (ids, asked) = match (&session.text, query) {
            (None, Prompt::Text(asked)) => {
                let asked = prompt::written(Prompt::Text(asked), session.chat_template);
                (self.encode("query", asked.into())?, None)
            }
            (None, query) => (self.encode("query", query)?, None),
            (Some(text), Prompt::Tokens(ids)) => {
                let ids = self.encode("query", Prompt::Tokens(ids))?;
                ([self.continued((session, text), Written::default())?, ids].concat(), None)
            }
            (Some(text), Prompt::Written(written)) => (self.continued((session, text), written)?, None),
            (Some(text), Prompt::Text(asked)) => {
                let more = self.behind(text, &asked, session.template_date.unwrap_or_default())?;
                let behind = self.around(text.continuation != Continuation::Rendered).behind;
                ([self.continued((session, text), more)?, behind].concat(), Some(asked))
            }
        };
        if ids.is_empty() {
            return Err(invalid("query", "the query has no tokens; ask something"));
        }
        Ok((ids, asked))
    }

    /// The ids of what a session does not hold yet, of its text with more behind it.
    pub(super) fn continued(
        &self,
        (session, text): (&AskedSession, &SessionText),
        more: Written,
    ) -> Result<Vec<u32>, JobError> {
        let ids = self.tokenizer.encode_passage(&text.rest.clone().followed_by(more), self.max_tokens);
        let ids = ids.map_err(|error| self.too_large("query", error))?;
        self.check_ids("query", &ids)?;
        let held = &session.ids[text.certain..session.plan.context_tokens];
        ids.strip_prefix(held).map(<[u32]>::to_vec).ok_or(JobError::SessionRewritten)
    }

    /// What stands behind a session's document when `asked` is asked about it, to where the answer begins.
    fn behind(&self, text: &SessionText, asked: &str, date: TemplateDate) -> Result<Written, JobError> {
        match text.continuation {
            Continuation::Rendered => self.later(text, asked, RenderOptions::on(date)).map(|later| later.written),
            Continuation::Message => Ok(Written::message(asked)),
            Continuation::Raw => Ok(Written::from(asked.to_owned())),
        }
    }

    /// What the chat template writes behind the document of a session, if `last` follows it, or its last answer.
    fn later(&self, text: &SessionText, last: &str, options: RenderOptions) -> Result<WholePrompt, JobError> {
        let stated = || text.turns.iter().flat_map(|turn| [&turn.question, &turn.answer]).chain([&text.opened]);
        let mut document = '\u{f8fd}'.to_string();
        while last.contains(&document) || stated().any(|stated| stated.contains(&document)) {
            document.push('\u{f8fd}');
        }
        let mut turns = Vec::new();
        for kept in &text.turns {
            let before = if turns.is_empty() { document.as_str() } else { "" };
            turns.push(ChatTurn::new(Speaker::User, format!("{before}{}", kept.question)));
            turns.push(ChatTurn::new(Speaker::Assistant, kept.answer.clone()));
        }
        let before = if turns.is_empty() { document.as_str() } else { "" };
        turns.push(ChatTurn::new(Speaker::User, format!("{before}{}{last}", text.opened)));
        let WholePrompt { mut written, at, .. } = self.rendered(&turns, options)?;
        let mut places = written.text().match_indices(&document).map(|(at, _)| at + document.len());
        match (places.next(), places.next()) {
            (Some(ends), None) => {
                let written = written.split_off(ends);
                Ok(WholePrompt { written, at: at.saturating_sub(ends), around: false })
            }
            _ => Err(JobError::SessionRewritten),
        }
    }

    /// What a session holds with more of its document, or of the message behind its last answer.
    pub(super) fn with_more(
        &self,
        session: &AskedSession,
        text: &SessionText,
        more: &str,
    ) -> Result<HeldSession, JobError> {
        let mut text = text.clone();
        if text.turns.is_empty() {
            let more = prompt::written(more.into(), text.continuation != Continuation::Raw);
            text.rest = text.rest.followed_by(more);
            let at = text.rest.written().text().len();
            let certain = text.certain;
            return self.grown(&session.ids[..session.plan.context_tokens], (text, certain), at);
        }
        text.opened.push_str(more);
        self.with_turns(session, text)
    }

    /// What a session holds to where the next question begins behind what was said since its document.
    pub(super) fn with_turns(&self, session: &AskedSession, text: SessionText) -> Result<HeldSession, JobError> {
        let turn = 2 * text.turns.len();
        let options = RenderOptions::on(session.template_date.unwrap_or_default());
        let at = text.opened.len();
        let WholePrompt { written, at, .. } = self.later(&text, STAND_IN, options.with_question(turn, at))?;
        let document = text.rest.written().text().len();
        let whole = SessionText { rest: text.rest.clone().followed_by(written), ..text.clone() };
        let certain = text.certain;
        let (ids, _) = self.grown(&session.ids[..session.plan.context_tokens], (whole, certain), document + at)?;
        Ok((ids, Some(text)))
    }
}
