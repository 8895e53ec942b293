//! A prompt tokenised whole, and cut into its context and its question. Plans nothing.

use asterism_models::{Around, ChatTurn, Passage, QuerySeparator, RenderOptions, Speaker, TemplateDate, Written};

use super::ModelFront;
use crate::{api::Prompt, error::JobError};

/// A prompt as one text.
pub(super) struct WholePrompt {
    /// All of it.
    pub written: Written,
    /// The byte where the question begins.
    pub at: usize,
    /// Whether the tokenizer puts its own tokens around it: a chat template writes them itself.
    pub around: bool,
}

impl ModelFront {
    /// The ids of a context and of a question about it: those of the whole, cut at the last border that no question moves.
    /// What is ids already is taken as it is, and text beside it tokenised by itself. `template`: the chat template is applied
    /// to texts, and told this date.
    pub(super) fn prompt(
        &self,
        (context, query): (Prompt, Prompt),
        separator: &QuerySeparator,
        template: Option<TemplateDate>,
    ) -> Result<(Vec<u32>, Vec<u32>), JobError> {
        self.check_bytes("context", &context)?;
        self.check_bytes("query", &query)?;
        match (context, query) {
            (Prompt::Tokens(context), query) => {
                let query = self.encode("query", separated(query, separator))?;
                Ok((self.encode("context", Prompt::Tokens(context))?, query))
            }
            (context, Prompt::Tokens(query)) => {
                let query = self.encode("query", Prompt::Tokens(query))?;
                let context = self.encode("context", context)?;
                Ok(([&self.tokenizer.around().before[..], &context].concat(), query))
            }
            (context, query) => self.cut(self.whole((context, query), separator, template)?),
        }
    }

    /// A context and a question, both texts, as one.
    pub(super) fn whole(
        &self,
        (context, query): (Prompt, Prompt),
        separator: &QuerySeparator,
        template: Option<TemplateDate>,
    ) -> Result<WholePrompt, JobError> {
        match (context, query, template) {
            (Prompt::Text(context), Prompt::Text(query), Some(date)) if self.template.is_chat() => {
                let at = context.len();
                let turn = ChatTurn::new(Speaker::User, context + &separator.before(&query));
                self.rendered(&[turn], RenderOptions::on(date).with_question(0, at))
            }
            (context, query, template) => {
                let mut written = written(context, template.is_some());
                let at = written.text().len();
                written.append(self::written(separated(query, separator), template.is_some()));
                Ok(WholePrompt { written, at, around: !(template.is_some() && self.template.is_chat()) })
            }
        }
    }

    /// A conversation as the chat template writes it.
    pub(super) fn rendered(&self, turns: &[ChatTurn], options: RenderOptions) -> Result<WholePrompt, JobError> {
        let rendered = self.template.render(turns, &options)?;
        let at = rendered.question_at.unwrap_or(rendered.written.text().len());
        Ok(WholePrompt { written: rendered.written, at, around: false })
    }

    /// A whole prompt as context and question. One token is a question without a context.
    fn cut(&self, WholePrompt { written, at, around }: WholePrompt) -> Result<(Vec<u32>, Vec<u32>), JobError> {
        let Around { before, behind } = self.around(around);
        let cut = self.tokenizer.cut(&Passage::from(written), at, self.max_tokens);
        let cut = cut.map_err(|error| self.too_large("context", error))?;
        let mut context = [&before[..], &cut.ids, &behind].concat();
        self.check_ids("context", &context)?;
        if context.len() < 2 {
            return Ok((Vec::new(), context));
        }
        let held = (before.len() + cut.held).clamp(1, context.len() - 1);
        let query = context.split_off(held);
        Ok((context, query))
    }

    /// The tokens around a text, if it gets any.
    pub(super) fn around(&self, around: bool) -> Around {
        if around { self.tokenizer.around().clone() } else { Around::default() }
    }
}

/// The query with what separates it from its context.
pub(super) fn separated(query: Prompt, separator: &QuerySeparator) -> Prompt {
    match query {
        Prompt::Text(text) => Prompt::Text(separator.before(&text)),
        given => given,
    }
}

/// A text, which names special tokens unless it is a message.
pub(super) fn written(prompt: Prompt, is_message: bool) -> Written {
    match prompt {
        Prompt::Text(text) if is_message => Written::message(&text),
        Prompt::Text(text) => Written::from(text),
        Prompt::Written(written) => written,
        Prompt::Tokens(_) => Written::default(),
    }
}
